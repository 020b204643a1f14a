"""The MTP chain: K small decoder layers that draft the next K tokens (architecture 5).

Depth d reads, at slot i, the token at i+1+d and the hidden state that depth d-1 left at slot i
(depth 0: the backbone's residual before the final norm), and predicts token i+2+d with a head of
its own. Knows nothing of acceptance: the caller hands over committed slots. Keeps true: after every
call the drafts equal those of the whole chain evaluated from scratch over the committed sequence,
because each call re-runs the K-1 slots before the new ones, whose deeper inputs were still guesses.

Legend (besides layers/): R = K-1 history slots, then the call's new slots; A = R + K - 1 tokens
ahead.
"""

import torch
from torch import Tensor

from graphs.backbone import decoder_layer, embed, head
from graphs.config import ModelConfig
from graphs.layers.linear import linear
from graphs.layers.norm import rms_norm
from graphs.layers.rope import Rotary, rotary_index, rotary_tables
from graphs.ops.sample import argmax
from graphs.state import MtpHistory, Rows, State
from graphs.weights import ModelWeights, MtpWeights


def mtp_block(
    r_TH: Tensor,
    ids_T: Tensor,
    embed_VH: Tensor,
    weights: MtpWeights,
    rows: Rows,
    rotary: Rotary,
    state: State,
    config: ModelConfig,
    depth: int,
    act: torch.dtype,
) -> Tensor:
    """Hidden state of depth-1 [T, H] and token ids [T] -> hidden state of this depth, f32 [T, H].

    eh_proj takes the embedding first; both halves are normalised (architecture 5.1).
    """
    layer = config.mtp_layers[depth]
    e_TH = rms_norm(embed(ids_T, embed_VH), weights.embed_norm, config.rms_eps, act)
    h_TH = rms_norm(r_TH.to(act), weights.hidden_norm, config.rms_eps, act)
    x_TH = linear(torch.cat([e_TH, h_TH], dim=-1), weights.eh_proj).float()
    pool, table = state.layers[layer.index], state.sliding_table
    return decoder_layer(x_TH, rows, rotary, weights.layer, pool, None, table, config, layer, act)


def draft_chain(
    hidden_SRH: Tensor,
    ahead_SA: Tensor,
    known_S: Tensor,
    rows: Rows,
    last_S: Tensor,
    weights: ModelWeights,
    state: State,
    config: ModelConfig,
    draft_tokens: int,
    act: torch.dtype,
) -> Tensor:
    """Run depths 0..K-1 over R rows of each of S slots and return the drafts, int64 [S, K].

    hidden [S, R, H]: the backbone's residual at each row. ahead [S, R+K-1]: ahead[:, j] is the
    token after row j. The first `known` of them are committed; a later one is what the depth that
    predicts it drafts. `rows` are the S*R rows flattened, `last` [S] the index of each slot's last
    valid row.
    """
    slots, count = hidden_SRH.shape[:2]
    slot = torch.arange(slots, device=hidden_SRH.device)
    r_TH = hidden_SRH.flatten(0, 1)
    rotary = rotary_tables(rows.position, config, act)
    drafts = []
    for depth in range(draft_tokens):
        mtp = weights.mtp[depth]
        ids_T = ahead_SA[:, depth : depth + count].flatten()
        here = rows, rotary[rotary_index(config, config.mtp_layers[depth])]
        r_TH = mtp_block(r_TH, ids_T, weights.embed, mtp, *here, state, config, depth, act)
        end_SH = r_TH.unflatten(0, (slots, count))[slot, last_S]
        draft_S = argmax(head(end_SH, mtp.head_norm, mtp.head, config, act))
        drafts.append(draft_S)
        # This draft is the token after the next row, unless the prompt already knows it.
        ahead_index = last_S + 1 + depth
        if depth + 1 < draft_tokens:
            index = ahead_index[:, None]
            guess = torch.where(ahead_index < known_S, ahead_SA.gather(1, index)[:, 0], draft_S)
            ahead_SA = ahead_SA.scatter(1, index, guess[:, None])
    return torch.stack(drafts, dim=1)


def remember(
    history: MtpHistory, slot_S: Tensor, hidden_SRH: Tensor, ahead_SA: Tensor, last_S: Tensor
) -> None:
    """Keep the K-1 rows up to `last` of each slot for the next call, in place."""
    kept = history.ids.shape[1]
    index_SR = last_S[:, None] - torch.arange(kept - 1, -1, -1, device=last_S.device)
    index_SRH = index_SR[..., None].expand(-1, -1, hidden_SRH.shape[2])
    history.ids.index_put_((slot_S,), ahead_SA.gather(1, index_SR))
    history.hidden.index_put_((slot_S,), hidden_SRH.gather(1, index_SRH))
