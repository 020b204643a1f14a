"""The longest context and the first one that is sparse: kernels against references, rows against
each other, and offsets that no 32 bits hold."""

from math import prod
from pathlib import Path

import pytest
import torch
from torch import Tensor

from graphs.checkpoint import Checkpoint
from graphs.ops.attention import region_attention
from graphs.ops.library import References
from graphs.ops.rotary import rope_write
from graphs.ops.summaries import update_summaries
from graphs.plan import EnginePlan
from graphs.state import BLOCK, OCTET
from graphs.synthetic import SMALL
from graphs.synthetic_weights import write_synthetic
from runtime.engine import Engine
from runtime.exchange import Turn
from tests.bench.filled import fill
from tests.graphs.ops.attention_cases import (
    BF16,
    FP32,
    Rows,
    check_cuts,
    error,
    make_pool,
    make_rows,
    random,
    rotary,
    tolerance,
)
from tests.graphs.ops.test_regions import Indexer, differing

END = 2**20
FAR = 2**31 + 2**20  # elements


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize("first", [4099, END - 5])
def test_regions_are_chosen_as_by_the_reference(isa: str, first: int, dtype: torch.dtype) -> None:
    """Rows up to position 4,103 have 512 regions before their own; the next one has to choose."""
    rows = make_rows([(first, 8 if first < END - 8 else 5)], columns=(first + 8) // BLOCK + 1)
    indexer = Indexer(rows, dtype, topk=512, width=16)
    found = indexer.choose()
    with References():
        expected = indexer.choose()
    assert differing(found, expected) < 0.03
    for position, ids in zip(rows.position.tolist(), found[:, 0].tolist(), strict=True):
        assert len(ids) == 512
        assert min(ids) >= 0
        assert max(ids) < position // 8
        if position <= 4103:
            assert ids == list(range(512))
        elif first < 8000:
            assert max(ids) == 512
    check_cuts(indexer.choose, len(rows))


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_keys_and_summaries_of_the_last_positions(isa: str, dtype: torch.dtype) -> None:
    """Written and read at the end of a table whose blocks lie anywhere in a pool."""
    rows = make_rows([(END - 5, 5)], columns=END // BLOCK)
    groups, width, proxy = 2, 8, 16
    blocks = int(rows.table.max()) + 1
    before = make_pool(blocks, groups, width, dtype)
    qkv = random(5, (4 + 2 * groups) * width, seed=3).to(dtype)
    ones = torch.zeros(width)
    ids = torch.tensor([0, 1, 700, 65_536, 131_070]).expand(5, groups, 5).contiguous()
    kz, ring = random(5, 2 * proxy, seed=4).to(BF16), random(2, 16, proxy, seed=5).to(BF16)

    def run() -> tuple[Tensor, Tensor]:
        pool = before.clone()
        summary = torch.zeros(blocks, BLOCK // 8, proxy).to(torch.float8_e4m3fn)
        places = rows.slot, rows.position, rows.table
        q = rope_write(qkv, ones, ones, rotary(rows, 4, dtype), *places, pool, 4, 1e-5)
        update_summaries(
            *(kz, torch.ones(proxy), torch.zeros(proxy), rotary(rows, 4), *places),
            *(summary, ring.clone(), ring.clone(), 8, 1e-5),
        )
        out = region_attention(q, qkv[:, :4].contiguous(), pool, *places, ids, 8)
        # The last position closes the last region.
        return out, summary.float()[rows.table[0, -1], -1]

    found, closed = run()
    with References():
        expected, reference = run()
    assert error(found, expected) < 2 * tolerance(dtype)
    assert closed.any()
    assert error(closed, reference) < 2**-3


def test_keys_may_lie_beyond_what_32_bits_count(isa: str) -> None:
    """Pools of more than 2^31 elements, of which a few pages are touched."""
    groups, width = 4, 192
    rows = make_rows([(40, 3)], columns=1)
    octets = groups, BLOCK // OCTET, 2, OCTET, width
    pool = torch.empty(FAR // prod(octets), *octets, dtype=BF16)
    ids = torch.tensor([1, 3]).expand(3, groups, 2).contiguous()
    qkv = random(3, (16 + 2 * groups) * width, seed=3).to(BF16)
    found = []
    for block in (1, len(pool) - 1):
        pool[block] = random(*octets).to(BF16)
        places = rows.slot, rows.position, torch.tensor([[block], [0]])
        norm = torch.zeros(width)
        q = rope_write(qkv, norm, norm, rotary(rows, 64), *places, pool, 16, 1e-5)
        found.append(region_attention(q, qkv[:, :16].contiguous(), pool, *places, ids, 8))
    assert torch.equal(pool[1], pool[-1])
    assert torch.equal(*found)
    assert found[0].any()


def test_summaries_may_lie_beyond_what_32_bits_count(isa: str) -> None:
    rows = make_rows([(60, 4)], columns=1)
    indexer = Indexer(rows, BF16, width=256, topk=2)
    summary = torch.empty(FAR // (BLOCK // 8 * 256), BLOCK // 8, 256, dtype=torch.float8_e4m3fn)
    kz, ring = random(4, 2 * 256, seed=4).to(BF16), random(2, 16, 256, seed=5).to(BF16)
    chosen, closed = [], []
    for block in (1, len(summary) - 1):
        summary[block] = indexer.summary[1]
        table = torch.tensor([[block], [0]])
        indexer.rows = Rows(slot=rows.slot, position=rows.position, table=table)
        kept, indexer.summary = indexer.summary, summary
        chosen.append(indexer.choose())
        indexer.summary = kept
        update_summaries(
            *(kz, torch.ones(256), torch.zeros(256), rotary(rows, 32), rows.slot, rows.position),
            *(table, summary, ring.clone(), ring.clone(), 8, 1e-5),
        )
        closed.append(summary[block].view(torch.uint8))
    assert torch.equal(*chosen)
    assert torch.equal(*closed)
    assert not torch.equal(closed[0], kept[1].view(torch.uint8))


@pytest.mark.parametrize("first", [4100, END - 4])
def test_a_model_decodes_there(isa: str, tmp_path: Path, first: int) -> None:
    """One row at a time and four at once give the same bits; references agree."""
    write_synthetic(tmp_path / "model", SMALL)
    checkpoint = Checkpoint.open(tmp_path / "model")
    engine = Engine(
        checkpoint.config,
        checkpoint.load(),
        plan=EnginePlan(widths=(1, 4), prefill=(256,)),
        precision="fp32",
        context=first + 4,
    )
    fill(engine.state)

    def plain() -> tuple[list[int], list[float]]:
        tokens, logprobs = [7], []
        for position in range(first, first + 4):
            turn = Turn(slot=0, position=position, token=tokens[-1])
            [made] = engine.decode([turn], draft=False)
            tokens += made.tokens
            logprobs += made.logprobs
        return tokens, logprobs

    tokens, logprobs = plain()
    turn = Turn(slot=0, position=first, token=7, drafts=tuple(tokens[1:4]))
    [wide] = engine.decode([turn])
    assert [*wide.tokens] == tokens[1:]
    assert [*wide.logprobs] == logprobs
    assert len(wide.drafts) == 3
    with References():
        expected, reference = plain()
    assert tokens == expected
    assert logprobs == pytest.approx(reference, abs=1e-3)
