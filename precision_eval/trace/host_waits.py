"""Where a call makes the host wait for the device: values that Python reads, sizes that depend on values, and copies.

An operation says so on any device; it counts where a tensor of it is on one that runs apart from the host. A copy with
``non_blocking`` is not counted.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from precision_eval.fixes.late_dynamo import dispatching_without
from precision_eval.trace.dtype_flow import CodeLine, DtypeFlow, Operation, line_outside
from precision_eval.trace.observer import ModuleCall
from precision_eval.trace.operations import name_of

READS = "Python reads a value of the device"
SIZES = "the size of the result depends on values of the device"
TO_HOST = "a tensor is copied to the host"
FROM_HOST = "values of the host are copied to the device"
INSIDE = "torch waits for the device inside this operation"

_READING = frozenset(("_local_scalar_dense", "equal", "allclose"))
_SIZED = frozenset(("nonzero", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive", "bincount"))
_INDEXED = frozenset(("index", "index_put", "index_put_", "_index_put_impl_"))
_MAKERS = frozenset(("tensor", "as_tensor", "asarray"))


def runs_apart(device: torch.device) -> bool:
    """Whether a device runs apart from the host, which only launches its work."""
    return device.type == "cuda"


def is_on_device(tensor: torch.Tensor) -> bool:
    return runs_apart(tensor.device)


def wait_of_operation(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Say why an operation below Python makes the host wait; empty where it does not."""
    first = args[0] if args and isinstance(args[0], torch.Tensor) else None
    if first is None:
        return ""
    if name in ("_to_copy", "copy_"):
        return _wait_of_copy(name, first, args, kwargs)
    if not is_on_device(first):
        return ""
    if name in _READING:
        return READS
    if name in _SIZED or (name == "repeat_interleave" and kwargs.get("output_size") is None and len(args) == 1):
        return SIZES
    return SIZES if name in _INDEXED and _is_sized_by_mask(args) else ""


def _wait_of_copy(name: str, first: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    if kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2]):
        return ""
    if name == "copy_":
        source, target = is_on_device(args[1]), is_on_device(first)
    else:
        device = kwargs.get("device")
        source = is_on_device(first)
        target = source if device is None else runs_apart(torch.device(device))
    return "" if source == target else TO_HOST if source else FROM_HOST


def _is_sized_by_mask(args: tuple[Any, ...]) -> bool:
    """Whether an index holds a mask; one number of the host assigned through a mask alone is filled in without it."""
    if not any(part is not None and part.dtype in (torch.bool, torch.uint8) for part in args[1]):
        return False
    value = args[2] if len(args) > 2 else None
    return not (value is not None and value.numel() == 1 and value.device.type == "cpu" and len(args[1]) == 1)


def wait_of_call(name: str, args: tuple[Any, ...], result: Any) -> str:
    """Say why a call of torch's Python interface makes the host wait, where no operation below it shows that."""
    if name in _MAKERS and isinstance(result, torch.Tensor):
        return FROM_HOST if args and not isinstance(args[0], torch.Tensor) and is_on_device(result) else ""
    if not args or not isinstance(args[0], torch.Tensor) or not is_on_device(args[0]):
        return ""
    if name == "tolist":
        return READS
    # A number assigned to one element is a copy of a tensor of the host; to a slice, it is a fill.
    is_of_one = name == "__setitem__" and _numbers(args[1]) == args[0].dim()
    return FROM_HOST if is_of_one and isinstance(args[2], bool | int | float | complex) else ""


def _numbers(index: Any) -> int:
    """Count the dimensions that an index takes one element of; −1 where it takes several of one."""
    parts = index if isinstance(index, tuple) else (index,)
    return len(parts) if all(isinstance(part, int) and not isinstance(part, bool) for part in parts) else -1


@dataclass(frozen=True, eq=False, slots=True)
class HostWait:
    """One call that makes the host wait, and the numbers of Python that it was given first."""

    reason: str
    name: str
    line: CodeLine
    call: ModuleCall | None
    number: bool | int | float | None = None


class WaitFlow(DtypeFlow):
    """Follows dtypes, and notes where a model on a device makes the host wait; once per call of Python's interface."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.waits: list[HostWait] = []
        self.is_on_device = any(map(is_on_device, self.tensors.held))
        self._called = ""
        self._is_noted = False

    def observed(self, call: Callable[[], Any]) -> Any:
        if not self.is_on_device:
            return super().observed(call)
        with OperationsWithWaits(self._note_wait), waits_inside(self._note_wait):
            return super().observed(call)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._called, self._is_noted = name_of(func), False
        result = super().__torch_function__(func, types, args, kwargs)
        if self.is_on_device and (reason := wait_of_call(name_of(func), args, result)):
            self._called = name_of(func)
            self._note_wait(reason, args[0])
        return result

    def _truncate(self, operation: Operation, result: torch.Tensor) -> None:
        self._is_noted = True  # to count cut digits is the observer's own wait
        super()._truncate(operation, result)

    def _note_wait(self, reason: str, value: Any = None) -> None:
        if self._is_noted:
            return
        self._is_noted = True
        code, instruction, _ = line_outside(sys._getframe(1))
        number = value if isinstance(value, bool | int | float) else None
        self.waits.append(HostWait(reason, self._called, (code, instruction), self.modules.current, number))


@contextmanager
def waits_inside(note: Callable[[str], None]) -> Iterator[None]:
    """Have torch tell of what its kernels wait for, such as the checks of ``multinomial`` in some versions."""
    if not torch.cuda.is_available():
        yield
        return

    def show(message: Warning | str, *rest: Any, **named: Any) -> None:
        if "synchronizing CUDA operation" in str(message):
            note(INSIDE)

    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(mode)


@dispatching_without
class OperationsWithWaits(TorchDispatchMode):
    """Tells of each operation that makes the host wait, before it runs."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        reason = wait_of_operation(func.overloadpacket.__name__, args, kwargs or {})
        if reason:
            self._note(reason)
        return func(*args, **(kwargs or {}))
