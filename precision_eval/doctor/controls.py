"""Runs and readings that tell one cause from another before a finding names it; imports torch.

A value that float64 breaks too is cured by no dtype. A drift that goes away with autocast's cache of casts switched off
comes of a cast that was kept while its weight changed. A half format that a model declares and nothing computed in is
a cost that no operation shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from precision_eval.core.formats import short
from precision_eval.core.formatting import join, plural
from precision_eval.doctor.accuracy import Excess
from precision_eval.doctor.diagnosis import Finding, Patch
from precision_eval.fixes.packing import ExaminedModel
from precision_eval.measure.float64_reference import Reference, in_wide, run_as
from precision_eval.measure.model_calls import CallOutcome, observe_call, output_error, run_fresh

_DECLARED = ("dtype", "torch_dtype", "compute_dtype")
_HALVES = (torch.float16, torch.bfloat16)

CACHE_OFF = "torch.set_autocast_cache_enabled(False)  # or an autocast of its own for each forward"


def is_broken_in_float64(outcome: CallOutcome, reference: Reference) -> bool:
    """Say whether each output value that is not finite is not finite in float64 either."""
    outputs, wide = outcome.outputs, reference.unfit
    if outputs is None or wide is None or [t.shape for t in wide] != [t.shape for t in outputs]:
        return False
    return not any(bool((~o.isfinite() & w.isfinite()).any()) for o, w in zip(outputs, wide, strict=True))


def count_inside_float64(subject: ExaminedModel) -> int:
    """Count the values of the call in float64 that are not finite, such as scores of −inf that a model means."""
    inside = 0

    def observed(twin: ExaminedModel, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        nonlocal inside
        _, outcome = observe_call(twin, lambda: twin(*inputs), inputs, base=torch.float64, values=True)
        inside = outcome.inside[0]
        return outcome.outputs or ()

    run_as(subject, in_wide, through=observed)
    return inside


def blame_no_dtype(finding: Finding) -> Finding:
    """Say of the first value that is not finite that float64 does not cure it."""
    if finding.kind != "first_non_finite":
        return finding
    reason = f"{finding.reason}; float64 gives the same, so no dtype cures it: look at what this operation is given"
    if finding.op in ("softmax", "scaled_dot_product_attention"):
        reason += "; softmax of a row of −inf, as of a query whose mask leaves no key, is NaN"
    return replace(finding, reason=reason)


def blame_cached_casts(
    subject: ExaminedModel, reference: Reference, excess: Excess, finding: Finding
) -> tuple[Finding, Patch | None]:
    """Blame the cache where a drift goes away once autocast keeps no casts, and return the change."""
    was_enabled = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        drift = output_error(run_fresh(subject).outputs, reference.outputs)
    finally:
        torch.set_autocast_cache_enabled(was_enabled)
    if drift is None or drift > excess.allowed:
        return finding, None
    reason = (
        f"{excess}; with autocast's cache off it is {drift:.2g}: within one autocast a weight changed after its cast "
        "was kept, and the kept cast was used again"
    )
    patch = Patch(place=finding.place, diff="", code=CACHE_OFF, origin="", verified=True, left=())
    return replace(finding, reason=reason), patch


def unused_formats(subject: ExaminedModel, base: torch.dtype, computed: Mapping[torch.dtype, Any]) -> Finding | None:
    """Return what a model declares in half where no operation gave a result in that format."""
    unused = {name: dtype for name, dtype in _declared(subject.unwrapped) if dtype not in computed}
    if base in _HALVES or not unused:
        return None
    dtypes = join(sorted({short(dtype) for dtype in unused.values()}))
    reason = (
        f"{plural(len(unused), 'it says', 'they say')} {dtypes}, and no operation ran in it: the weights are "
        f"{short(base)}, and nothing casts to it; what the format would save is in the table of fixes"
    )
    return Finding(
        kind="declared", severity="risk", op=join(list(unused)), module="",
        module_class=type(subject.unwrapped).__name__, place=None, operands=(), result=dtypes, reason=reason,
    )  # fmt: skip


def _declared(model: Any) -> Iterator[tuple[str, torch.dtype]]:
    """Yield the half formats that a model's attributes and its config name."""
    for prefix, holder in (("", model), ("config.", getattr(model, "config", None))):
        for name in _DECLARED:
            value = holder.get(name) if isinstance(holder, dict) else getattr(holder, name, None)
            dtype = getattr(torch, value.removeprefix("torch."), None) if isinstance(value, str) else value
            if isinstance(dtype, torch.dtype) and dtype in _HALVES:
                yield f"{prefix}{name}", dtype
