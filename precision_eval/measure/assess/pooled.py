"""What is judged: the tensors of one or several calls, checked and brought to one layout.

Conventions: every tensor is float64 on the CPU in the layout (groups, heads, rows, channels): the last axis of what
was given holds the channels, the one before the rows, the one before that the heads, and all others, the pooled calls
included, the groups. Axes that are missing have length 1; a vector is one row. *Error* is the difference to the
reference. An element that is not finite in the candidate or the reference is set aside and counted; where only the
yardstick is not finite, the rounded reference takes its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from precision_eval.core.errors import ParameterError
from precision_eval.core.formats import Format, format_by_name

Tensors = Tensor | Sequence[Tensor]
DTYPES = ("float16", "bfloat16", "float32")


@dataclass(frozen=True, kw_only=True)
class NonFinite:
    """NaN and infinity, counted where the candidate and the reference disagree; ``first`` says where that begins."""

    candidate: int
    reference: int
    yardstick: int
    invented: int
    overflowed: int
    hidden: int
    hidden_zero: int
    as_yardstick: int
    first: tuple[int, ...] | None


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """Calls in one layout."""

    candidate: Tensor
    reference: Tensor
    yardstick: Tensor
    rounded: Tensor
    ulp: Tensor
    format: Format
    calls: int
    judged: int
    non_finite: NonFinite


def pool(candidate: Tensors, reference: Tensors, yardstick: Tensors) -> Pooled:
    """Check the tensors and bring them to one layout."""
    found, exact, plain = (
        _as_list(tensors, name) for tensors, name in zip((candidate, reference, yardstick), NAMES, strict=True)
    )
    dtype = _check(found, exact, plain)
    wide = [torch.stack([t.detach().to("cpu", torch.float64) for t in ts]) for ts in (found, exact, plain)]
    size = format_by_name(str(dtype).removeprefix("torch."))
    rounded = wide[1].to(dtype).to(torch.float64)
    non_finite, kept = _account(wide[0], wide[1], wide[2], rounded)
    judged = wide[0].numel() if kept is None else int(kept.sum())
    if kept is not None:
        rounded = torch.where(kept, rounded, 0.0)
        wide[2] = torch.where(wide[2].isfinite(), wide[2], rounded)
        wide = [torch.where(kept, t, 0.0) for t in wide]
    layout = _layout(wide[0].shape)
    parts = [t.reshape(layout) for t in (*wide, rounded)]
    return Pooled(
        candidate=parts[0],
        reference=parts[1],
        yardstick=parts[2],
        rounded=parts[3],
        ulp=spacing(parts[1], size),
        format=size,
        calls=len(found),
        judged=judged,
        non_finite=non_finite,
    )


def spacing(x: Tensor, size: Format) -> Tensor:
    """Size of a ULP at finite x, as :func:`precision_eval.core.formats.ulp` gives it, in three passes over
    the tensor.
    """
    binade = (x.view(torch.int64) & (0x7FF << 52)).view(torch.float64)
    return (binade * size.eps).clamp(size.smallest_subnormal, size.eps * 2.0**size.max_exponent)


NAMES = ("candidate", "reference", "yardstick")


def _as_list(tensors: Tensors, name: str) -> list[Tensor]:
    listed = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    for tensor in listed:
        if not isinstance(tensor, Tensor):
            raise ParameterError(f"the {name} holds a {type(tensor).__name__}; give a tensor or a list of tensors")
    return listed


def _check(found: list[Tensor], exact: list[Tensor], plain: list[Tensor]) -> torch.dtype:
    if not len(found) == len(exact) == len(plain) or not found:
        raise ParameterError(
            f"found {len(found)} candidates, {len(exact)} references and {len(plain)} yardsticks; "
            "give as many of each, and at least one"
        )
    shapes = {tuple(t.shape) for t in (*found, *exact, *plain)}
    if len(shapes) > 1:
        raise ParameterError(
            f"the tensors differ in shape ({', '.join(map(str, sorted(shapes)))}); candidate, reference and yardstick "
            "have to be the same call's outputs, and pooled calls of one shape"
        )
    if found[0].ndim == 0 or found[0].numel() == 0:
        raise ParameterError(f"there is nothing to judge in shape {tuple(found[0].shape)}; give at least one element")
    dtypes = {t.dtype for t in (*found, *plain)}
    if len(dtypes) > 1 or str(found[0].dtype).removeprefix("torch.") not in DTYPES:
        raise ParameterError(
            f"candidate and yardstick are {', '.join(sorted(map(str, dtypes)))}; both have to be of one dtype, "
            f"one of {', '.join(DTYPES)}: the dtype in which the candidate was returned"
        )
    for tensor in exact:
        if tensor.dtype is not torch.float64:
            raise ParameterError(f"the reference is {tensor.dtype}; compute it in float64 on the same stored inputs")
    return found[0].dtype


def _account(found: Tensor, exact: Tensor, plain: Tensor, rounded: Tensor) -> tuple[NonFinite, Tensor | None]:
    """Count what is not finite; the second value is True where candidate and reference are, None where all is."""
    if bool(torch.isfinite(found.sum() + rounded.sum() + plain.sum())):
        return NonFinite(**dict.fromkeys(COUNTS, 0), first=None), None
    fine, true, plain_fine = found.isfinite(), exact.isfinite(), plain.isfinite()
    beyond = true & rounded.isinf()
    overflowed = beyond & found.isinf()
    invented, hidden = ~fine & true & ~overflowed, fine & ~true
    wrong = (invented | hidden).nonzero()
    kept = fine & true & ~beyond
    if not kept.any() and not len(wrong):
        raise ParameterError(
            "no element is finite in candidate and reference, so there is no error to judge; use others"
        )
    counts = (~fine, ~true, ~plain_fine, invented, overflowed, hidden, hidden & (found == 0), invented & ~plain_fine)
    first = tuple(int(i) for i in wrong[0]) if len(wrong) else None
    return NonFinite(**{name: int(c.sum()) for name, c in zip(COUNTS, counts, strict=True)}, first=first), kept


COUNTS = ("candidate", "reference", "yardstick", "invented", "overflowed", "hidden", "hidden_zero", "as_yardstick")


def _layout(shape: torch.Size) -> tuple[int, int, int, int]:
    """Groups (calls first), heads, rows, channels."""
    heads, rows, channels = (1, 1, 1, *shape[1:])[-3:]
    return shape.numel() // (channels * rows * heads), heads, rows, channels
