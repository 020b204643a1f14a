"""The operator library: schemas under fourstep::, each with its reference in torch.

Knows how an operator is registered. A reference serves every device until a kernel takes its place:
loading the CPU kernels (build.py) replaces it for CPU tensors alone. Plain torch.library
registrations, because the decorator of torch.library imports the whole compiler at its first call.
Keeps true: one schema, one reference and one fake an operator.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_LIBRARY = torch.library.Library("fourstep", "DEF")
_REFERENCES: dict[Any, Callable[..., Any]] = {}


def define(schema: str, reference: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Register `name(arguments) -> results` with its reference and its shape function.

    Returns the operator, to be called with the schema's arguments.
    """
    name = schema.partition("(")[0]
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, reference, "CompositeExplicitAutograd")
    torch.library.register_fake(f"fourstep::{name}", fake, lib=_LIBRARY)
    operator = getattr(torch.ops.fourstep, name).default
    _REFERENCES[operator] = reference
    return operator


class References(TorchDispatchMode):
    """Within this context every operator runs its reference, kernels loaded or not."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in _REFERENCES:
            func = _REFERENCES[func]
        return func(*args, **(kwargs or {}))
