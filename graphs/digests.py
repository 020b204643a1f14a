"""Digests that tie an artifact to what it was built from: the sources and the weights' layout.

Knows files and shapes, never a weight's value: engines hold no weights.
"""

import hashlib
from functools import cache
from pathlib import Path

from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path

from graphs.weights import ModelWeights

_SUFFIXES = (".py", ".cpp", ".h")


@cache
def source_digest() -> str:
    """sha256 of everything under graphs/ that programs and kernels are made of."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.suffix in _SUFFIXES or path.parent.name == "include":
            digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def layout_digest(weights: ModelWeights) -> str:
    """sha256 of every weight's name, type and shape."""
    leaves, _ = tree_flatten_with_path(weights)
    lines = [
        f"{keystr(path)} {leaf.dtype} {list(leaf.shape)}"
        for path, leaf in leaves
        if isinstance(leaf, Tensor)
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
