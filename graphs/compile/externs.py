"""The operator calls of a compiled program, read from its package.

Knows how AOTInductor writes down the calls that its code leaves to operators. Does not run them
(ops/cpu/bind_program.cpp). Keeps true: a call of ours is told whole or not at all; what is not told
is left to torch's own way of calling, which is slower and does the same.
"""

import json
import zipfile
from pathlib import Path
from typing import Any

import torch

Argument = tuple[str, Any]
External = tuple[str, tuple[Argument, ...], int]  # operator, arguments, tensors that it returns
_NAMESPACE = "fourstep::"


def externs(package: Path) -> list[External]:
    """In the order in which the program numbers them. Of an argument: "tensor", "tensors" and how
    many, "int" (given at each call), or "value". An operator that is not ours has no name."""
    with zipfile.ZipFile(package) as archive:
        names = [name for name in archive.namelist() if name.endswith(".wrapper.json")]
        nodes = [node for name in names for node in json.loads(archive.read(name))["nodes"]]
    return [_extern(node["node"]) for node in nodes]


def _extern(node: dict[str, Any]) -> External:
    arguments = [_argument(given["arg"]) for given in node["inputs"]]
    returned = [output for output in node["outputs"] if list(output) == ["as_tensor"]]
    ours = node["target"].startswith(_NAMESPACE) and len(returned) == len(node["outputs"])
    known = tuple(argument for argument in arguments if argument is not None)
    if not ours or len(known) != len(arguments):
        return "", (), 0
    return node["target"], known, len(returned)


def _argument(written: dict[str, Any]) -> Argument | None:
    [(kind, value)] = written.items()
    match kind:
        case "as_tensor":
            return "tensor", 1
        case "as_tensors":
            return "tensors", len(value)
        case "as_int" | "as_sym_int":
            return "int", 1
        case "as_scalar_type":
            return "value", _dtype(value)
        case "as_string" | "as_float" | "as_bool":
            return "value", value
    return None


def _dtype(written: int) -> torch.dtype:
    from torch._export.serde.schema import ScalarType

    return getattr(torch, ScalarType(written).name.lower())
