"""The module around a library's own object, and the mode that keeps float64 wide in it; imports torch.

Conventions: a :class:`WrappedModel` derives from :class:`~precision_eval.cases.systems.system.System`, so that it has a
float64 twin. The twin's calls run under :class:`KeepingFloat64`, since the libraries force float32 in places.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from precision_eval.cases.systems.system import System

Function = Callable[..., Any]

#: Casts that name no dtype among their arguments.
_NAMED_CASTS: frozenset[Function] = frozenset((torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16))
_CASTS_LIKE: frozenset[Function] = frozenset((torch.Tensor.to, torch.Tensor.type_as))
_FACTORIES: frozenset[Function] = frozenset(
    (torch.arange, torch.empty, torch.full, torch.linspace, torch.ones, torch.tensor, torch.zeros)
)


def _is_narrow(value: Any) -> bool:
    return isinstance(value, torch.dtype) and value.is_floating_point and value is not torch.float64


class KeepingFloat64(TorchFunctionMode):
    """Turns casts of float64 tensors to narrower floating dtypes into no-ops."""

    def __init__(self, *, factories: bool = False) -> None:
        super().__init__()
        self.factories = factories

    def _keeps(self, func: Function, args: tuple[Any, ...]) -> bool:
        """Whether the narrow dtype that a call asks for is to be float64 instead."""
        first = args[0] if args else None
        if isinstance(first, torch.Tensor):
            return first.dtype is torch.float64 or (self.factories and not first.is_floating_point())
        return self.factories and func in _FACTORIES

    def __torch_function__(
        self, func: Function, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call with float64 in the place of each narrower dtype, where the first tensor is float64."""
        kwargs = dict(kwargs or {})
        if not self._keeps(func, args):
            return func(*args, **kwargs)
        if func in _NAMED_CASTS:
            return args[0].double()
        if func in _CASTS_LIKE and len(args) > 1 and isinstance(args[1], torch.Tensor) and _is_narrow(args[1].dtype):
            return args[0].to(args[1].device, torch.float64)
        wide = tuple(torch.float64 if _is_narrow(value) else value for value in args)
        return func(*wide, **{name: torch.float64 if _is_narrow(value) else value for name, value in kwargs.items()})


class WrappedModel(System):
    """A thin module around a library's own model; subclasses write :meth:`run`, not ``forward``."""

    not_landed = "the library's own class never had the bug: it keeps one dtype; the split was put in from outside"

    def __init__(self, *, working_dtype: torch.dtype) -> None:
        super().__init__()
        self.working_dtype = working_dtype

    def run(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Call the library's model once."""
        raise NotImplementedError

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Call the library's model once, kept in float64 if this is the twin."""
        with KeepingFloat64(factories=True) if self.working_dtype is torch.float64 else nullcontext():
            return self.run(*inputs)
