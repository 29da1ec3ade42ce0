"""What is judged: the tensors of one or several calls, checked and brought to one layout.

Conventions: tensors are float64 on the CPU in the layout (groups, heads, rows, channels): the last axis of what
was given holds the channels, the one before the rows, the one before that the heads, and all others, the pooled calls
included, the groups. Axes that are missing have length 1; a vector is one row. *Error* is the difference to the
reference. An element that is not finite, or beyond the dtype, in the reference is set aside; one that is not finite in
a candidate or a yardstick takes the rounded reference's place and is counted. Yardsticks that agree bit for bit are
one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from precision_eval.core.errors import ParameterError
from precision_eval.core.formats import Format, format_by_name, short

Tensors = Tensor | Sequence[Tensor]
Yardsticks = Tensor | Sequence[Tensors] | Mapping[str, Tensors] | Sequence[Mapping[str, Tensor]]
DTYPES = ("float16", "bfloat16", "float32")


@dataclass(frozen=True, kw_only=True)
class NonFinite:
    """NaN and infinity, counted where the candidate and the reference disagree; ``first`` says where that begins."""

    candidate: int
    reference: int
    invented: int
    overflowed: int
    hidden: int
    hidden_zero: int
    first: tuple[int, ...] | None


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """Reference and yardsticks of some calls in one layout; ``kept`` is False where nothing can be judged. Yardsticks
    are in ``work``, which holds the dtype with room to spare.
    """

    reference: Tensor
    exact: Tensor
    rounded: Tensor
    ulp: Tensor
    kept: Tensor
    yardsticks: tuple[Tensor, ...]
    names: tuple[str, ...]
    dtype: torch.dtype
    work: torch.dtype
    format: Format
    shape: tuple[int, ...]
    calls: int

    def candidate(self, tensors: Tensors) -> tuple[Tensor, NonFinite]:
        """Check a candidate and bring it to the layout; count what is not finite."""
        found = stacked(tensors, "candidate", self.calls, self.shape, {self.dtype})
        fine, true = found.isfinite(), self.exact.isfinite()
        overflowed = true & ~self.kept & ~fine
        invented, hidden = ~fine & true & ~overflowed, fine & ~true
        counts = (~fine, ~true, invented, overflowed, hidden, hidden & (found == 0))
        wrong = (invented | hidden).reshape(self.calls, *self.shape).nonzero()
        if not (fine & self.kept).any() and not len(wrong):
            raise ParameterError(
                "no element is finite in candidate and reference, so there is no error to judge; use others"
            )
        first = tuple(int(i) for i in wrong[0]) if len(wrong) else None
        non_finite = NonFinite(**{name: int(c.sum()) for name, c in zip(COUNTS, counts, strict=True)}, first=first)
        return torch.where(fine & self.kept, found, self.rounded), non_finite


COUNTS = ("candidate", "reference", "invented", "overflowed", "hidden", "hidden_zero")


def pool(reference: Tensors, yardsticks: Yardsticks, dtype: torch.dtype) -> Pooled:
    """Check reference and yardsticks and bring them to one layout."""
    name = short(dtype)
    if name not in DTYPES:
        raise ParameterError(
            f"the candidate is {name}; expected one of {', '.join(DTYPES)}: the dtype in which it was returned"
        )
    listed = _listed(reference, "reference")
    shape = tuple(listed[0].shape)
    if not shape or 0 in shape:
        raise ParameterError(f"there is nothing to judge in shape {shape}; give at least one element")
    exact = stacked(listed, "reference", len(listed), shape, {torch.float64})
    named = _named(yardsticks)
    wide = {dtype, torch.float32, torch.float64}
    rounded = exact.to(dtype).to(torch.float64)
    kept = rounded.isfinite()
    rounded = torch.where(kept, rounded, 0.0)
    kept_reference = torch.where(kept, exact, 0.0)
    size = format_by_name(name)
    work = torch.float64 if dtype is torch.float32 else torch.float32
    distinct: dict[str, Tensor] = {}
    for key, one in named.items():
        given = stacked(one, f"yardstick '{key}'", len(listed), shape, wide, to=work)
        fine = given.to(dtype).isfinite().logical_and_(kept)
        given = given if fine.all() else torch.where(fine, given, rounded.to(work))
        if not any(torch.equal(given, other) for other in distinct.values()):
            distinct[key] = given
    return Pooled(
        reference=kept_reference,
        exact=exact,
        rounded=rounded,
        ulp=spacing(kept_reference, size),
        kept=kept,
        yardsticks=tuple(distinct.values()),
        names=tuple(distinct),
        dtype=dtype,
        work=work,
        format=size,
        shape=shape,
        calls=len(listed),
    )


def spacing(x: Tensor, size: Format) -> Tensor:
    """Size of a ULP at finite x, as :func:`precision_eval.core.formats.ulp` gives it, in three passes over
    the tensor.
    """
    binade = (x.view(torch.int64) & (0x7FF << 52)).view(torch.float64)
    return (binade * size.eps).clamp(size.smallest_subnormal, size.eps * 2.0**size.max_exponent)


def _listed(tensors: Tensors, name: str) -> list[Tensor]:
    listed = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    if not listed:
        raise ParameterError(f"the {name} holds no tensor; give one per call, and at least one call")
    for tensor in listed:
        if not isinstance(tensor, Tensor):
            raise ParameterError(f"the {name} holds a {type(tensor).__name__}; give a tensor or a list of tensors")
    return listed


def _named(yardsticks: Yardsticks) -> dict[str, Tensors]:
    if isinstance(yardsticks, Tensor):
        return {"yardstick": yardsticks}
    if isinstance(yardsticks, Mapping):
        named: dict[str, Any] = dict(yardsticks)
    elif listed := [one for one in yardsticks if isinstance(one, Mapping)]:  # of a call each
        named = {name: [one[name] for one in listed] for name in listed[0] if all(name in one for one in listed)}
    else:
        named = {str(i + 1): one for i, one in enumerate(yardsticks)}
    if not named:
        raise ParameterError("found no yardsticks; give at least one honest computation of the same calls")
    return named


def stacked(
    tensors: Tensors,
    name: str,
    calls: int,
    shape: tuple[int, ...],
    dtypes: set[torch.dtype],
    *,
    to: torch.dtype = torch.float64,
) -> Tensor:
    """All calls in the layout."""
    listed = _listed(tensors, name)
    shapes = {tuple(t.shape) for t in listed} | {shape}
    if len(listed) != calls or len(shapes) > 1:
        raise ParameterError(
            f"the {name} holds {len(listed)} tensors for {calls} calls of the reference, shapes "
            f"{', '.join(map(str, sorted(shapes)))}; give one per call, all of one shape"
        )
    odd = {t.dtype for t in listed} - dtypes
    if odd:
        raise ParameterError(
            f"the {name} is {', '.join(sorted(map(str, odd)))}; expected {' or '.join(sorted(map(str, dtypes)))}: "
            "the reference in float64 on the same stored inputs, or on the operands as cast for on_cast_inputs, the "
            "candidate as returned, a yardstick in its dtype or wider"
        )
    heads, rows, channels = (1, 1, 1, *shape)[-3:]
    return torch.stack([t.detach().cpu() for t in listed]).to(to).reshape(-1, heads, rows, channels)
