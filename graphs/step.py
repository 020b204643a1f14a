"""One step: what an engine runs. DecodeStep verifies, accepts and drafts; PrefillChunk loads a
prompt.

Knows batches of slots with fixed shapes and the order of the parts; all maths is in backbone, mtp
and ops. Does not know requests, stop conditions or text. Keeps true: no Python decision depends on
a tensor's value, padding (rows and slots) goes to the scratch slot, and the host needs to read back
only the sampled tokens, the accepted counts and the drafts.

Legend: S slots of the batch, W = 1+K rows a slot, K drafts, T rows of a prefill chunk, R and A as
in mtp.py.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from graphs.backbone import backbone, head
from graphs.config import ModelConfig
from graphs.mtp import draft_chain, remember
from graphs.ops.sample import count_tokens, sample
from graphs.sampling import Sampling
from graphs.state import Rows, State
from graphs.weights import ModelWeights


@dataclass(frozen=True, kw_only=True)
class StepOutput:
    """sampled [S, W]: the target's token after each row; logprobs [S, W]: f32, of those tokens;
    accepted [S]: how many drafts were right (tokens 0..accepted of `sampled` are committed); drafts
    [S, K]: for the next step."""

    sampled: Tensor
    logprobs: Tensor
    accepted: Tensor
    drafts: Tensor


torch.export.register_dataclass(StepOutput, serialized_type_name="fourstep.StepOutput")


class DecodeStep(nn.Module):
    """Verify 1+K rows a slot, accept, re-run the MTP chain over the committed rows, draft K
    more."""

    def __init__(self, config: ModelConfig, draft_tokens: int, act: torch.dtype):
        super().__init__()
        self.config, self.draft_tokens, self.act = config, draft_tokens, act

    def forward(
        self,
        tokens_SW: Tensor,
        position_S: Tensor,
        slot_S: Tensor,
        sampling: Sampling,
        weights: ModelWeights,
        state: State,
    ) -> StepOutput:
        """tokens: the last committed token, then the drafts; position: of that committed token.

        A slot id equal to state.slots pads the batch.
        """
        config, act, drafts = self.config, self.act, self.draft_tokens
        offset_W = torch.arange(1 + drafts, device=tokens_SW.device)
        position_SW = position_S[:, None] + offset_W
        rows = slot_rows(slot_S, position_SW, state)
        r_TH = backbone(tokens_SW.flatten(), rows, weights, state, config, act)
        logits_TV = head(r_TH, weights.norm, weights.head, config, act)
        sampled_SW, logprobs_SW = sample(
            *(logits_TV, tokens_SW, position_S, slot_S, sampling),
            *(state.counts, state.prompt, state.bias),
        )
        right_SK = (sampled_SW[:, :-1] == tokens_SW[:, 1:]).long()
        accepted_S = right_SK.cumprod(dim=1).sum(dim=1)
        count_tokens(state.counts, slot_S, sampled_SW, accepted_S)
        drafts_SK = sampled_SW[:, :0]
        if drafts > 0:
            hidden_SWH = r_TH.unflatten(0, tokens_SW.shape)
            drafts_SK = self._draft(
                hidden_SWH, sampled_SW, accepted_S, position_S, slot_S, weights, state
            )
        return StepOutput(
            sampled=sampled_SW, logprobs=logprobs_SW, accepted=accepted_S, drafts=drafts_SK
        )

    def _draft(
        self,
        hidden_SWH: Tensor,
        sampled_SW: Tensor,
        accepted_S: Tensor,
        position_S: Tensor,
        slot_S: Tensor,
        weights: ModelWeights,
        state: State,
    ) -> Tensor:
        """The chain over the K+1 slots that end at the last committed one (architecture 5.3).

        Old stale slots and new ones together never exceed K+1. With nothing accepted the
        window starts one slot before the history; that row is padding.
        """
        drafts, history = self.draft_tokens, state.history
        window_R = torch.arange(1 + drafts, device=slot_S.device)
        index_SR = accepted_S[:, None] - 1 + window_R  # into history, then this step's rows
        position_SR = position_S[:, None] - (drafts - 1) + index_SR
        rows = slot_rows(slot_S, position_SR, state, index_SR >= 0)
        index_SR = index_SR.clamp(min=0)
        all_ids = torch.cat([history.ids[slot_S], sampled_SW], dim=1)
        all_hidden = torch.cat([history.hidden[slot_S], hidden_SWH], dim=1)
        index_SRH = index_SR[..., None].expand(-1, -1, all_hidden.shape[2])
        hidden_SRH = all_hidden.gather(1, index_SRH)
        guesses = torch.zeros_like(sampled_SW[:, : drafts - 1])
        ahead_SA = torch.cat([all_ids.gather(1, index_SR), guesses], dim=1)
        last_S = torch.full_like(slot_S, drafts)
        remember(history, slot_S, hidden_SRH, ahead_SA, last_S)
        known_S = last_S + 1
        return draft_chain(
            *(hidden_SRH, ahead_SA, known_S, rows, last_S),
            *(weights, state, self.config, drafts, self.act),
        )


class PrefillChunk(nn.Module):
    """Run one chunk of one prompt; the last chunk samples the first token and drafts K more."""

    def __init__(self, config: ModelConfig, draft_tokens: int, act: torch.dtype):
        super().__init__()
        self.config, self.draft_tokens, self.act = config, draft_tokens, act

    def forward(
        self,
        tokens_A: Tensor,
        count: Tensor,
        known: Tensor,
        position: Tensor,
        slot: Tensor,
        sampling: Sampling,
        weights: ModelWeights,
        state: State,
    ) -> StepOutput:
        """tokens [T+K]: the chunk, then the prompt's next K tokens as far as there are any.

        All of count, known, position, slot are int64 [1]: rows in use (1..T), entries of `tokens`
        that are real, position of the first row, slot. With known == count the prompt ends here and
        the sampled token follows it; else sampled and drafts are of no use to the caller.
        """
        config, act, drafts = self.config, self.act, self.draft_tokens
        offset_T = torch.arange(tokens_A.shape[0] - drafts, device=tokens_A.device)
        in_use = (offset_T < count)[None]
        rows = slot_rows(slot, (position + offset_T)[None], state, in_use)
        r_TH = backbone(tokens_A[: len(offset_T)], rows, weights, state, config, act)
        logits_TV = head(r_TH[count - 1], weights.norm, weights.head, config, act)
        sampled_SW, logprobs_SW = sample(
            *(logits_TV, tokens_A[count - 1][None], position + count - 1, slot, sampling),
            *(state.counts, state.prompt, state.bias),
        )
        accepted_S = torch.zeros_like(count)
        counted = torch.where(known > count, state.slots, slot)  # nothing is committed inside
        count_tokens(state.counts, counted, sampled_SW, accepted_S)
        output = StepOutput(
            sampled=sampled_SW, logprobs=logprobs_SW, accepted=accepted_S, drafts=sampled_SW[:, :0]
        )
        if drafts == 0:
            return output
        history = state.history
        past = history.ids.shape[1]
        last = past + count - 1
        hidden_SRH = torch.cat([history.hidden[slot], r_TH[None]], dim=1)
        ahead_SA = torch.cat([history.ids[slot], tokens_A[None, 1:]], dim=1)
        follower = torch.where(known > count, ahead_SA[:, last][0], sampled_SW[0])
        ahead_SA = ahead_SA.scatter(1, last[:, None], follower[:, None])
        offset_R = torch.arange(-past, len(offset_T), device=tokens_A.device)
        in_use = (offset_R < count)[None]
        rows = slot_rows(slot, (position + offset_R)[None], state, in_use)
        remember(history, slot, hidden_SRH, ahead_SA, last)
        known_ahead = past + torch.maximum(known - 1, count)
        drafts_SK = draft_chain(
            *(hidden_SRH, ahead_SA, known_ahead, rows, last),
            *(weights, state, config, drafts, act),
        )
        return replace(output, drafts=drafts_SK)


def slot_rows(
    slot_S: Tensor, position_SW: Tensor, state: State, in_use_SW: Tensor | None = None
) -> Rows:
    """Flatten [S, W] rows; those not in use or before position 0 become padding."""
    slot_SW = slot_S[:, None].expand_as(position_SW)
    valid_SW = (slot_SW >= 0) & (slot_SW < state.slots) & (position_SW >= 0)
    if in_use_SW is not None:
        valid_SW = valid_SW & in_use_SW
    return Rows(
        slot=torch.where(valid_SW, slot_SW, state.slots).flatten(),
        position=torch.where(valid_SW, position_SW, 0).flatten(),
        valid=valid_SW.flatten(),
    )
