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
from precision_eval.measure.model_calls import CallOutcome, output_error, run_fresh

_DECLARED = ("dtype", "torch_dtype", "compute_dtype")
_HALVES = (torch.float16, torch.bfloat16)

CACHE_OFF = "torch.set_autocast_cache_enabled(False)  # or an autocast of its own for each forward"


def is_broken_in_float64(subject: ExaminedModel, outcome: CallOutcome) -> bool:
    """Say whether each output value that is not finite is not finite in float64 either."""
    if outcome.outputs is None or outcome.are_tokens:
        return False
    wide = run_as(subject, in_wide).outputs
    if wide is None or [output.shape for output in wide] != [output.shape for output in outcome.outputs]:
        return False
    return not any(
        bool((~output.isfinite() & exact.isfinite()).any()) for output, exact in zip(outcome.outputs, wide, strict=True)
    )


def blame_no_dtype(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Say of the first value that is not finite that float64 does not cure it."""
    reason = "float64 gives the same, so no dtype cures it: look at the values that this operation is given"
    if any(finding.op in ("softmax", "scaled_dot_product_attention") for finding in findings):
        reason += "; softmax of a row of −inf, as of a query whose mask leaves no key, is NaN"
    return tuple(
        replace(finding, reason=f"{finding.reason}; {reason}") if finding.kind == "first_non_finite" else finding
        for finding in findings
    )


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
