"""What a call holds at once: an allocator that only counts, and operations that only allocate.

Conventions: bytes. A :class:`Sized` has a shape and a dtype and no values; its block is given back to the
:class:`Meter` when the last reference to it goes, as torch's is (CPython counts references). So code written like a
model's forward takes and gives memory in the order in which the model does, and the highest level is its peak. Three
kinds are told apart: ``activations``, ``casts`` (copies that a fix makes) and ``workspace`` (what a kernel takes for
itself; the copy of a cache that MetaVoice's source makes in eager is not counted).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod
from typing import Literal

from precision_eval.core.errors import PrecisionEvalError
from precision_eval.core.formats import format_by_name

Kind = Literal["activations", "casts", "workspace"]


class DisagreementError(PrecisionEvalError, RuntimeError):
    """Two operands disagree where nothing brings them together: the model raises there."""


def item_bytes(dtype: str) -> int:
    """Bytes of an element."""
    return {"bool": 1, "int64": 8}.get(dtype) or format_by_name(dtype).bits // 8


def promoted(left: str, right: str) -> str:
    """Dtype of an elementwise operation on two tensors, as torch promotes it."""
    if left == right or right in ("bool", "int64"):
        return left
    if left in ("bool", "int64"):
        return right
    if {left, right} == {"float16", "bfloat16"}:
        return "float32"
    return max(left, right, key=item_bytes)


def broadcast(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of an elementwise operation on two tensors."""
    length = max(len(left), len(right))
    padded = [(1,) * (length - len(shape)) + shape for shape in (left, right)]
    return tuple(max(pair) for pair in zip(*padded, strict=True))


class Meter:
    """The level of allocated bytes and what it consisted of when it was highest."""

    def __init__(self) -> None:
        self.level = 0
        self.peak = 0
        self._live: Counter[str] = Counter()
        self.at_peak: dict[str, int] = {}

    def take(self, kind: Kind, nbytes: int) -> None:
        """Raise the level."""
        self.level += nbytes
        self._live[kind] += nbytes
        if self.level > self.peak:
            self.peak = self.level
            self.at_peak = dict(self._live)

    def give(self, kind: Kind, nbytes: int) -> None:
        """Lower the level."""
        self.level -= nbytes
        self._live[kind] -= nbytes


class _Block:
    """An allocation; gives its bytes back when the last tensor on it goes."""

    __slots__ = ("_kind", "_meter", "_nbytes")

    def __init__(self, meter: Meter, kind: Kind, nbytes: int) -> None:
        self._meter, self._kind, self._nbytes = meter, kind, nbytes
        meter.take(kind, nbytes)

    def __del__(self) -> None:
        self._meter.give(self._kind, self._nbytes)


@dataclass(frozen=True, slots=True)
class Sized:
    """A tensor without values."""

    shape: tuple[int, ...]
    dtype: str
    block: _Block | None = None
    parameter: bool = False

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.numel * item_bytes(self.dtype)

    def view(self, *shape: int) -> Sized:
        """Look at the same memory in another shape, or at a part of it."""
        return Sized(shape, self.dtype, self.block)


def allocate(meter: Meter, shape: tuple[int, ...], dtype: str, kind: Kind) -> Sized:
    """Take memory for a tensor."""
    return Sized(shape, dtype, _Block(meter, kind, prod(shape) * item_bytes(dtype)))
