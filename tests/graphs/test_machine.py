"""What this machine says of itself, and what it is told it is not."""

import dataclasses
from pathlib import Path

import pytest
import torch

from graphs import machine
from graphs.machine import Machine, sku_names, this_machine
from graphs.ops.build import ISAS

FLAGS = "avx512f avx512bw avx512vl avx512dq avx512vbmi avx512_bf16 fma avx2"


def with_flags(monkeypatch: pytest.MonkeyPatch, flags: str) -> None:
    monkeypatch.setattr(machine, "_cpuinfo", {"flags": flags, "model name": "A CPU"}.__getitem__)


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (FLAGS, ("cpu-avx512", "cpu-avx2", "cpu-scalar")),
        (FLAGS.replace("avx512_bf16 ", ""), ("cpu-avx2", "cpu-scalar")),
        ("avx2 fma", ("cpu-avx2", "cpu-scalar")),
        ("avx2", ("cpu-scalar",)),
        ("", ("cpu-scalar",)),
    ],
)
def test_a_sku_needs_every_flag_its_kernels_use(
    monkeypatch: pytest.MonkeyPatch, flags: str, names: tuple[str, ...]
) -> None:
    with_flags(monkeypatch, flags)
    assert sku_names() == names
    assert this_machine().isa == names[0].removeprefix("cpu-")


def test_a_sku_of_another_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with_flags(monkeypatch, "avx2 fma")
    assert this_machine("cpu-scalar").isa == "scalar"
    for name in ("cpu-avx512", "h200", ""):
        with pytest.raises(ValueError, match=f"--sku {name}: .* cpu-avx2, cpu-scalar"):
            this_machine(name)


def test_this_machine() -> None:
    found = this_machine()
    assert found.torch == torch.__version__
    assert found.isa in ISAS
    assert found.device
    assert found.arch
    assert found.differences(found) == []


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Machine)])
def test_every_field_is_compared(field: str) -> None:
    mine = this_machine()
    other = dataclasses.replace(mine, **{field: "other"})
    assert mine.differences(other) == [f"{field}: {getattr(mine, field)} here, other there"]


def test_a_system_without_cpuinfo_has_the_scalar_kernels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine, "Path", lambda _: tmp_path / "nothing")
    assert sku_names() == ("cpu-scalar",)
    assert this_machine().device
