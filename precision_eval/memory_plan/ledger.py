"""What a call holds at once: an allocator that only counts, and operations that only allocate.

Conventions: bytes. A :class:`Sized` has a shape and a dtype and no values; its block is given back to the
:class:`Meter` when the last reference to it goes, as torch's is (CPython counts references). So code written like a
model's forward takes and gives memory in the order in which the model does, and the highest level is its peak. Three
kinds are told apart: ``activations``, ``casts`` (copies that a fix makes) and ``workspace`` (what a kernel takes for
itself; the copy of a cache that MetaVoice's source makes in eager is not counted).

Not counted: Python numbers in arithmetic (some ten bytes each), the scratch that oneDNN and cuBLAS take beside the
allocator, and rounding (512 bytes per tensor on CUDA).

Contents: :class:`Meter`, :class:`Sized`, :class:`DisagreementError`, :func:`item_bytes`, :func:`promoted`,
:func:`broadcast`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod
from typing import Literal

from precision_eval.errors import PrecisionEvalError
from precision_eval.formats import format_by_name

Kind = Literal["activations", "casts", "workspace"]


class DisagreementError(PrecisionEvalError, RuntimeError):
    """Two operands disagree where nothing brings them together: the model raises there."""


def item_bytes(dtype: str) -> int:
    """Bytes of an element.

    Parameters
    ----------
    dtype : str
        A floating format, ``"bool"`` or ``"int64"``.

    Returns
    -------
    int
    """
    return {"bool": 1, "int64": 8}.get(dtype) or format_by_name(dtype).bits // 8


def promoted(left: str, right: str) -> str:
    """Dtype of an elementwise operation on two tensors, as torch promotes it.

    Parameters
    ----------
    left, right : str
        Floating formats, ``"bool"`` or ``"int64"``.

    Returns
    -------
    str
        The wider one; float16 with bfloat16 gives float32.
    """
    if left == right or right in ("bool", "int64"):
        return left
    if left in ("bool", "int64"):
        return right
    if {left, right} == {"float16", "bfloat16"}:
        return "float32"
    return max(left, right, key=item_bytes)


def broadcast(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of an elementwise operation on two tensors.

    Parameters
    ----------
    left, right : tuple of int
        Equal sizes, or 1, aligned at the last axis.

    Returns
    -------
    tuple of int
    """
    length = max(len(left), len(right))
    padded = [(1,) * (length - len(shape)) + shape for shape in (left, right)]
    return tuple(max(pair) for pair in zip(*padded, strict=True))


class Meter:
    """The level of allocated bytes and what it consisted of when it was highest.

    Attributes
    ----------
    level, peak : int
    at_peak : dict of str to int
        Bytes of each kind when the peak was first reached; they sum to ``peak``.
    """

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
    """A tensor without values.

    Attributes
    ----------
    shape : tuple of int
    dtype : str
    block : object or None
        What keeps its memory; shared by views, ``None`` for what is stored outside the call.
    parameter : bool
        A trainable leaf: autocast keeps the cast copy of a float32 one until its context ends.
    """

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
    """Take memory for a tensor.

    Parameters
    ----------
    meter : Meter
    shape : tuple of int
    dtype : str
    kind : {"activations", "casts", "workspace"}

    Returns
    -------
    Sized
    """
    return Sized(shape, dtype, _Block(meter, kind, prod(shape) * item_bytes(dtype)))
