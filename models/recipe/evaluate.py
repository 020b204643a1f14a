"""Held-out measurements with the training model: perplexity, tasks, drafts.

Knows held-out library rows and chats; does not know training. A chat counts as exact when every
answer token is the argmax after the true ones before it, which is when greedy decoding writes
exactly this answer. Keeps true: measuring changes nothing.

Legend: B batch, T sequence, D depth.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from models.recipe.attention import Place
from models.recipe.data import (
    ANSWER,
    HELD_OUT_CHATS,
    PAD_ID,
    ROW,
    SEED,
    TOKEN,
    Batch,
    Data,
    as_batch,
    library_rows,
)
from models.recipe.drafts import following_tokens
from models.recipe.model import Model
from models.recipe.tasks import MAKERS, Chat, generate

MICRO_ROWS = 8
LONGEST_CHAT = 384


class RandomSelection(Model):
    """The same weights with regions chosen at random: what the indexer's choice is worth."""

    def __init__(self, model: Model) -> None:
        super().__init__(model.dims, model.parameters, model.device)
        self.quantised = model.quantised
        self.generator = torch.Generator(model.device).manual_seed(0)

    def region_scores(self, h_BTH: Tensor, layer: int, place: Place) -> Tensor:
        del layer, place
        b, t, _ = h_BTH.shape
        shape = (b, self.dims.groups, t, t // self.dims.region)
        return torch.rand(shape, generator=self.generator, device=h_BTH.device)


def held_out_chats() -> list[Chat]:
    """The chats of data.chats_held_out, in its order."""
    stream = generate(SEED, held_out=True)
    return [next(stream) for _ in range(HELD_OUT_CHATS)]


def tokens_a_step(right_BTD: Tensor, counted_BT: Tensor) -> float:
    """One plus the mean run of right drafts, over the counted slots."""
    runs = right_BTD.long().cumprod(-1).sum(-1)
    return 1.0 + float((runs * counted_BT).sum() / counted_BT.sum())


def prompt_of(row: np.ndarray) -> list[int]:
    """The tokens before the answer of a packed chat."""
    return (row[: int(np.argmax((row & ANSWER) > 0))] & TOKEN).tolist()


class Evaluator:
    """Scores on `rows` held-out library rows and `chats` held-out chats."""

    def __init__(self, data: Data, device: torch.device, *, rows: int, chats: int) -> None:
        self.device = device
        offsets = np.linspace(0, len(data.library_held_out) - ROW, rows).astype(np.int64)
        self.library = library_rows(data.library_held_out, offsets)
        packed = data.chats_held_out[:, :LONGEST_CHAT]
        fits = data.chats_held_out[:, LONGEST_CHAT] == PAD_ID
        self.numbers = np.flatnonzero(fits)[:chats]
        self.chats = packed[self.numbers]
        tasks = [chat.task for chat in held_out_chats()]
        self.tasks = [tasks[number] for number in self.numbers]

    def _batches(self, *, library: bool) -> list[Batch]:
        if library:
            splits = np.array_split(self.library, -(-len(self.library) // MICRO_ROWS))
            return [as_batch(part, np.zeros((0, ROW), np.uint16)) for part in splits]
        no_rows = np.zeros((0, LONGEST_CHAT + 1), np.int64)
        return [as_batch(no_rows, part) for part in self._chat_parts()]

    def _chat_parts(self) -> list[np.ndarray]:
        return np.array_split(self.chats, -(-len(self.chats) // (2 * MICRO_ROWS)))

    def _move(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        arrays = batch.tokens, batch.starts, batch.weights
        tokens, starts, weights = (torch.from_numpy(a).to(self.device) for a in arrays)
        return tokens, starts, weights

    @torch.no_grad()
    def library_perplexity(self, model: Model, *, sparse: bool) -> float:
        total, count = 0.0, 0
        for batch in self._batches(library=True):
            tokens, starts, _ = self._move(batch)
            logits = model.trunk(tokens[:, :-1], model.place(starts), sparse=sparse).logits
            nll = F.cross_entropy(
                logits.float().flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum"
            )
            total, count = total + float(nll), count + starts.numel()
        return math.exp(total / count)

    @torch.no_grad()
    def selection_scores(self, model: Model) -> dict[str, float]:
        """What the choice of regions is worth where it has to leave out half of them or more.

        Perplexity of the later half of the library rows with the trained, a random and no
        selection, and the share of attention mass that the first two hold.
        """
        scores: dict[str, float] = {}
        ways = {
            "trained": (model, True),
            "random": (RandomSelection(model), True),
            "dense": (model, False),
        }
        for way, (chosen, sparse) in ways.items():
            nll, held = [], []
            for batch in self._batches(library=True):
                tokens, starts, _ = self._move(batch)
                trunk = chosen.trunk(tokens[:, :-1], chosen.place(starts), sparse=sparse)
                late = slice(ROW // 2, None)
                logits, targets = trunk.logits[:, late].float(), tokens[:, 1:][:, late]
                nll.append(F.cross_entropy(logits.flatten(0, 1), targets.flatten()))
                held += [report.recall for report in trunk.indexers]
            scores[f"ppl_{way}"] = math.exp(float(torch.stack(nll).mean()))
            if sparse:
                scores[f"mass_{way}"] = float(torch.stack(held).mean())
        return scores

    @torch.no_grad()
    def chat_scores(self, model: Model, *, sparse: bool) -> dict[str, float]:
        """Perplexity of answer tokens and the share of exact answers, overall and by task."""
        exact: list[bool] = []
        total, count = 0.0, 0.0
        for batch, part in zip(self._batches(library=False), self._chat_parts(), strict=True):
            tokens, starts, _ = self._move(batch)
            logits = model.trunk(tokens[:, :-1], model.place(starts), sparse=sparse).logits
            flags = np.pad(part, ((0, 0), (0, 1)))[:, 1:]
            answer = torch.from_numpy((flags & ANSWER) > 0).to(self.device)
            nll = F.cross_entropy(
                logits.float().flatten(0, 1), tokens[:, 1:].flatten(), reduction="none"
            ).view(answer.shape)
            total, count = total + float((nll * answer).sum()), count + float(answer.sum())
            right = (logits.argmax(-1) == tokens[:, 1:]) | ~answer
            exact += right.all(1).tolist()
        scores = {"answers_ppl": math.exp(total / count), "exact": sum(exact) / len(exact)}
        for task in MAKERS:
            mine = [ok for ok, name in zip(exact, self.tasks, strict=True) if name == task]
            scores[f"exact_{task}"] = sum(mine) / max(1, len(mine))
        return scores

    def trunk_scores(self, model: Model, *, sparse: bool) -> dict[str, float]:
        library = self.library_perplexity(model, sparse=sparse)
        return {"library_ppl": library} | self.chat_scores(model, sparse=sparse)

    @torch.no_grad()
    def _right_drafts(self, model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
        """Whether each depth's draft is the backbone's argmax [B, T, D], and which slots count."""
        tokens, starts, weights = self._move(batch)
        place, depths = model.place(starts), model.dims.mtp_layers
        trunk = model.trunk(tokens[:, :-1], place, sparse=True)
        best = trunk.logits.argmax(-1)
        drafts = model.mtp(trunk.residual, following_tokens(tokens, depths), place)
        size = best.shape[1] - depths
        right = [
            draft.argmax(-1)[:, :size] == best[:, depth + 1 : depth + 1 + size]
            for depth, draft in enumerate(drafts)
        ]
        # a slot counts when the whole step it opens lies in generated text
        counted = weights.unfold(1, depths + 1, 1).amin(-1)[:, :size] >= 1.0
        return torch.stack(right, -1), counted

    def draft_scores(self, model: Model) -> dict[str, float]:
        """Teacher-forced tokens a step and agreement by depth, on library text and on answers."""
        scores: dict[str, float] = {}
        for kind in ("library", "chat"):
            found = [self._right_drafts(model, b) for b in self._batches(library=kind == "library")]
            right = torch.cat([r for r, _ in found])
            counted = torch.cat([c for _, c in found])
            scores[f"{kind}_tokens_a_step"] = tokens_a_step(right, counted)
            for depth in range(right.shape[-1]):
                share = (right[..., depth] * counted).sum() / counted.sum()
                scores[f"{kind}_agree{depth + 1}"] = float(share)
        return scores
