"""The results document: sections replaced one by one, bars judged from what was measured."""

import json
from pathlib import Path

import pytest

from runtime.bench.tables import Table
from tests.bench.bars import BARS, Bar, bars_table
from tests.bench.document import ORDER, Section, markdown, publish


def section(key: str, value: float, **numbers: float) -> Section:
    table = Table(title=f"{key} table", columns=("what", "s"), rows=(("it", f"{value}"),))
    return Section(
        key=key, title=f"About {key}", text=f"`make {key}`", tables=(table,), numbers=numbers
    )


def test_a_section_replaces_its_own_and_leaves_the_others(tmp_path: Path) -> None:
    publish([section("start", 1.0), section("synthetic", 2.0)], tmp_path)
    text = publish([section("synthetic", 3.0)], tmp_path)
    assert text == (tmp_path / "results.md").read_text()
    assert "| it | 1.0 |" in text
    assert "| it | 3.0 |" in text
    assert "| it | 2.0 |" not in text
    assert text.index("## Bars") < text.index("## About synthetic") < text.index("## About start")
    assert text.count("Machine: ") == 2
    assert list(json.loads((tmp_path / "results.json").read_text())) == ["synthetic", "start"]


def test_bars_are_judged_by_the_numbers_of_all_sections(tmp_path: Path) -> None:
    publish([section("peers", 1.0, plain_over_llama=1.3, mtp_over_llama=1.7)], tmp_path)
    text = publish([section("synthetic", 1.0, width_4_time_over_bytes=1.11)], tmp_path)
    assert "| plain decoding over llama.cpp | at least 1.2 x | 1.30 x | yes |" in text
    assert "| at least 1.8 x | 1.70 x | no |" in text
    assert "| at most 1.1 x | 1.11 x | no |" in text
    assert "| at least 0.8 | not measured |  |" in text


@pytest.mark.parametrize("bar", BARS, ids=lambda bar: bar.number)
def test_a_bar_is_reached_at_its_limit_and_not_beyond(bar: Bar) -> None:
    assert bar.section in ORDER
    worse = bar.limit * (1.01 if bar.most else 0.99)
    assert bar.reached(bar.limit)
    assert not bar.reached(worse)


def test_no_measurement_is_no_success() -> None:
    rows = bars_table({}).rows
    assert len(rows) == len(BARS)
    assert {row[2:] for row in rows} == {("not measured", "")}


def test_a_table_in_markdown() -> None:
    table = Table(title="t", columns=("a", "b"), rows=(("x", "1"), ("y", "2")))
    assert markdown(table) == "| a | b |\n|---|---:|\n| x | 1 |\n| y | 2 |\n"
