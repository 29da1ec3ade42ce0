"""What an observer notes: one mixing of dtypes, the operation that raised, the operands of a call; imports torch."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from precision_eval.trace.capture import BACKENDS
from precision_eval.trace.operations import FLOATS, Key, Kind, name_of
from precision_eval.trace.provenance import Call, Record

Line = tuple[CodeType, int]
Tensors = list[tuple[Key, torch.Tensor]]


class Event:
    """One mixing of dtypes."""

    def __init__(
        self,
        kind: str,
        number: int,
        name: str,
        sort: Kind,
        line: Line,
        call: Call | None,
        operands: list[tuple[Key, tuple[int, ...], Record]],
        result: torch.dtype,
        *,
        of_module: bool,
        deliberate: bool = False,
        stored: Record | None = None,
    ) -> None:
        self.kind = kind
        self.number = number
        self.name = name
        self.sort = sort
        self.line = line
        self.call = call
        self.operands = operands
        self.result = result
        self.of_module = of_module
        self.deliberate = deliberate
        self.leaked = ""
        self.stored = stored
        self.caller: Line | None = None


class Raised:
    """The operation that raised an error."""

    def __init__(self, error: BaseException, event: Event) -> None:
        self.error = error
        self.event = event


class Kernels(TorchDispatchMode):
    """Collects which attention kernels ran."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and note an attention kernel."""
        name = str(func)
        self.seen.update(backend for part, backend in BACKENDS if part in name)
        if "softmax" in name:
            self.seen.add("softmax")
        return func(*args, **(kwargs or {}))

    @property
    def backend(self) -> str:
        """Fused kernels first; a softmax without one is the plain computation."""
        return "+".join(sorted(self.seen - {"softmax"})) or ("math" if self.seen else "unknown")


TENSORS = (torch.Tensor, nn.Parameter)
MASKS = frozenset(["masked_fill", "where", "full", "full_like", "masked_fill_", "fill_", "triu", "tril"])


def widest(found: tuple[torch.Tensor, ...]) -> torch.dtype:
    """Widest dtype of some tensors."""
    return max((tensor.dtype for tensor in found), key=lambda dtype: torch.finfo(dtype).bits)


def asks_for_dtype(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> bool:
    """Whether a cast names a dtype; ``x.to(device)`` does not."""
    if name_of(func) != "to":
        return True
    named = (*args[1:], *(kwargs or {}).values())
    return any(isinstance(value, torch.dtype | torch.Tensor) for value in named)


def operands_of(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Tensors:
    """List the floating operands of a call, with where they stood."""
    found: Tensors = []
    for index, value in enumerate(args):
        if isinstance(value, torch.Tensor):
            if value.dtype in FLOATS:
                found.append(((index,), value))
        elif value.__class__ in (tuple, list):
            for at, part in enumerate(value):
                if isinstance(part, torch.Tensor) and part.dtype in FLOATS:
                    found.append(((index, at), part))
    if kwargs:
        for name, value in kwargs.items():
            if isinstance(value, torch.Tensor) and value.dtype in FLOATS:
                found.append(((name,), value))
    return found
