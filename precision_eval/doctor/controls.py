"""Runs and readings that tell one cause from another before a finding names it; imports torch.

A value that float64 breaks too is cured by no dtype. A drift that goes away with autocast's cache of casts switched off
comes of a cast that was kept while its weight changed. A half format that a model declares and nothing computed in is
a cost that no operation shows.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from precision_eval.core.formats import short
from precision_eval.core.formatting import join, percent, plural
from precision_eval.doctor.accuracy import BEYOND_FORMAT, HALF_LOST, HARDLY_A_DIGIT, Excess
from precision_eval.doctor.diagnosis import Finding, Patch
from precision_eval.doctor.error_budget import drift_between, run_changed, run_rounded
from precision_eval.doctor.findings import declared_formats
from precision_eval.doctor.repairs import Repair, any_layer
from precision_eval.doctor.source import keyword_argument, source_line, with_argument
from precision_eval.fixes.packing import ExaminedModel
from precision_eval.measure.float64_reference import Reference, in_wide, run_as
from precision_eval.measure.model_calls import (
    CallOutcome,
    attempt,
    copy_model,
    observe_call,
    output_error,
    run_fresh,
)
from precision_eval.trace.dtype_flow import CodeLine, DtypeFlow, is_internal, line_outside
from precision_eval.trace.operations import ASSIGNMENTS, name_of, python_body
from precision_eval.trace.provenance import Provenance, ancestors, named_tensors
from precision_eval.trace.replay import rounding
from precision_eval.trace.value_counts import in_float64

_HALVES = (torch.float16, torch.bfloat16)

CACHE_OFF = "torch.set_autocast_cache_enabled(False)  # or an autocast of its own for each forward"


# Of the values that are not finite, those that float64 still holds: what grows without end gets there a little later.
MOST_LATER = 0.05


def is_broken_in_float64(outcome: CallOutcome, reference: Reference) -> bool:
    """Say whether the output values that are not finite, all but a few, are not finite in float64 either."""
    outputs, wide = outcome.outputs, reference.unfit
    if outputs is None or wide is None or [t.shape for t in wide] != [t.shape for t in outputs]:
        return False
    broken = sum(int((~output.isfinite()).sum()) for output in outputs)
    cured = sum(int((~o.isfinite() & w.isfinite()).sum()) for o, w in zip(outputs, wide, strict=True))
    return cured <= MOST_LATER * broken


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


@contextmanager
def _limits_of_float32(read: dict[CodeLine, torch.dtype], *, wide: bool) -> Iterator[None]:
    """Note where code outside torch asks for the limits of a half format; if wide, give it the epsilon of float32."""
    original = torch.finfo

    def limits(dtype: torch.dtype | None = None) -> Any:
        info = original() if dtype is None else original(dtype)
        code, instruction, _ = line_outside(sys._getframe(1))
        if dtype not in _HALVES or is_internal(sys._getframe(1).f_code.co_filename):
            return info
        read.setdefault((code, instruction), dtype)
        names = ("bits", "dtype", "max", "min", "tiny", "smallest_normal", "eps", "resolution")
        exact = original(torch.float32)
        values = {n: getattr(exact if wide and n in ("eps", "resolution") else info, n) for n in names}
        return SimpleNamespace(**values)

    torch.finfo = limits  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        torch.finfo = original  # type: ignore[misc]


def blame_epsilon(
    subject: ExaminedModel, reference: Reference, excess: Excess, finding: Finding
) -> tuple[Finding, Patch | None]:
    """Blame the epsilon of a half format where a drift goes away with float32's, and return the change."""
    read: dict[CodeLine, torch.dtype] = {}
    with _limits_of_float32(read, wide=True):
        drift = output_error(run_fresh(subject).outputs, reference.outputs)
    if not read or drift is None or drift > max(excess.allowed, excess.drift / 2):
        return finding, None
    line, dtype = next(iter(read.items()))
    place, eps = source_line(*line), torch.finfo(dtype).eps
    reason = (
        f"the output's relative error to float64 is {excess.drift:.2g}, and {drift:.2g} with float32's eps here: that "
        f"of {short(dtype)} is {eps:.2g}, too large for what is clamped to it or added to it; take float32's, or "
        "smallest_normal where it only keeps from zero"
    )
    repair = Repair()
    with suppress(SyntaxError):
        for at in read:
            repair.source.insert(with_argument(*at, "torch.float32"))
        if repair.source and repair.source.reaches:
            with repair.source.active():
                repair.outputs = run_fresh(repair.copy(subject)).outputs
    cured = output_error(repair.outputs, reference.outputs)
    patch = repair.as_patch(place, "") if cured is not None and cured <= drift else None
    blamed = replace(
        finding, severity="fault", op="finfo", place=place, reason=reason, module="", operands=(),
        module_class=type(subject.unwrapped).__name__,
    )  # fmt: skip
    return blamed, patch or Patch(place=place, diff="", code="", origin=reason, verified=False, left=())


def blame_trained_halves(subject: ExaminedModel, error: Exception) -> tuple[tuple[tuple[str, str], ...], str] | None:
    """Name the parameters in float16 whose gradients a GradScaler refuses, and say why."""
    trained = [n for n, p in subject.unwrapped.named_parameters() if p.requires_grad and p.dtype is torch.float16]
    if "unscale FP16 gradients" not in str(error) or not trained:
        return None
    more = f" and {len(trained) - 3} more" if len(trained) > 3 else ""
    reason = (
        f"{', '.join(trained[:3])}{more} are trained in float16, so their gradients are float16, which GradScaler "
        "refuses: train them in float32 and let autocast compute in float16"
    )
    return tuple(("parameter", name) for name in trained), reason


class _StepsInPlace(TorchFunctionMode):
    """Counts the values of stored half tensors that operations in place change in float64, and leave as they were."""

    def __init__(self, stored: Mapping[int, str]) -> None:
        super().__init__()
        self.stored = stored  # name by the address of the storage
        self.moves: Counter[tuple[CodeLine, str, str, torch.dtype]] = Counter()
        self.left: Counter[tuple[CodeLine, str, str, torch.dtype]] = Counter()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if body := python_body(func):
            with self:
                return body(*args, **(kwargs or {}))
        name, target = name_of(func), args[0] if args and isinstance(args[0], torch.Tensor) else None
        if not name.endswith("_") or name in ASSIGNMENTS or target is None or target.dtype not in _HALVES:
            return func(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunction():
            stored, before = self.stored.get(target.untyped_storage().data_ptr()), target.detach().clone()
            exact = in_float64(func, args, kwargs) if stored else None
        result = func(*args, **(kwargs or {}))
        if stored and exact is not None and exact.shape == before.shape:
            key = line_outside(sys._getframe(1))[:2], name, stored, target.dtype
            with torch._C.DisableTorchFunction():
                self.moves[key] += int((exact != before).sum())
                self.left[key] += int(((exact != before) & (target == before)).sum())
        return result


def find_lost_steps(subject: ExaminedModel, observer: DtypeFlow) -> Finding | None:
    """Name an operation in place that leaves most of what it changes in float64 of a stored half tensor as it is."""
    if not any(target.is_stored and target.dtype in _HALVES for target in observer.targets.values()):
        return None
    model = copy_model(subject)
    named = [(n, t) for _, n, t in named_tensors(model, (), prefix=model.prefix) if not n.startswith("tensors[")]
    steps = _StepsInPlace({tensor.untyped_storage().data_ptr(): name for name, tensor in named})
    with steps:
        attempt(lambda: model(*model.tensors))
    lost = ((key, left / steps.moves[key]) for key, left in steps.left.items() if left > HALF_LOST * steps.moves[key])
    for (line, op, name, dtype), share in lost:
        reason = (
            f"{percent(share)} of the values of {name} that {op} changes in float64 stay as they are: {short(dtype)} "
            "cannot hold steps so small beside them; do it on a float32 copy, ahead of what rounds that"
        )
        return Finding(
            kind="collapsed", severity="fault", op=op, module="", module_class=type(subject.unwrapped).__name__,
            place=source_line(*line), operands=(), result=short(dtype), reason=reason,
        )  # fmt: skip
    return None


def find_rounded_buffer(subject: ExaminedModel, angles: list[Provenance], reference: Reference) -> Finding | None:
    """Name a buffer in half of which large angles are computed: what it lost when it was stored does not come back."""
    stored = {
        at.name: at.dtype for angle in angles for at in (angle, *ancestors(angle)) if at.kind in ("buffer", "attribute")
    }
    named = {name: tensor for _, name, tensor in named_tensors(subject, (), prefix=subject.prefix)}
    stored = {
        name: dtype
        for name, dtype in stored.items()
        if dtype in _HALVES and name in named and not torch.equal(named[name], named[name].round())
    }
    if not stored:
        return None
    largest = max((float(angle.abs().max()) for angle in run_rounded(subject, {}).angles if angle.numel()), default=0.0)
    name, dtype = max(stored.items(), key=lambda item: rounding(item[1]))
    off, path = largest * rounding(dtype), name.rpartition(".")[0]
    owner = subject.unwrapped.get_submodule(path)
    if not HARDLY_A_DIGIT < off < float("inf"):
        return None
    is_computed = name not in subject.unwrapped.state_dict()  # neither trained nor loaded
    changed = run_changed(subject, name, lambda kept, drawn: kept * (1 + rounding(dtype) * drawn))
    moved = drift_between(changed, run_rounded(subject, {})) if reference.name == "float64" else 0.0
    is_fault = is_computed and moved > BEYOND_FORMAT * rounding(dtype)
    reason = (
        f"it is stored in {short(dtype)}, and angles of up to {largest:.3g} rad are computed of it, which are off by "
        f"up to {off:.2g} rad if it was rounded when it was stored"
        + (f"; a change as small as that rounding moves the output by {moved:.2g}" if is_fault else "")
        + "; a later cast to float32 brings nothing back: compute it anew in float32 after the model is cast"
    )
    return Finding(
        kind="collapsed" if is_fault else "drift", severity="fault" if is_fault else "risk", op=name, module=path,
        module_class=type(owner).__name__, place=None, operands=(), result=short(dtype), reason=reason,
    )  # fmt: skip


def find_idle_autocast(observer: DtypeFlow) -> Finding | None:
    """Name an autocast to a half format that the code names and that is switched off, where nothing ran in half."""
    counts = {} if observer.numbers is None else observer.numbers.counts
    named = [
        (line, dtype) for line, dtype in observer.idle_autocasts if keyword_argument(*line, "dtype")
    ]  # others are guards
    if observer.base in _HALVES or any(dtype in counts for dtype in _HALVES) or not named:
        return None
    line, dtype = named[0]
    enabled = keyword_argument(*line, "enabled")
    switch = f"by {enabled}, which is false," if enabled else "as its device is not there,"
    reason = (
        f"this autocast to {short(dtype)} is switched off {switch} so all of it ran in {short(observer.base)}: look at "
        "what decides that, such as a format compared under another name; what the format would save is in the table "
        "of fixes"
    )
    return Finding(
        kind="declared", severity="risk", op="autocast", module="", module_class="the model",
        place=source_line(*line), operands=(), result=short(dtype), reason=reason,
    )  # fmt: skip


def unused_formats(subject: ExaminedModel, base: torch.dtype, computed: Mapping[torch.dtype, Any]) -> Finding | None:
    """Return what a model declares in half where no operation gave a result in that format."""
    unused = {name: dtype for name, dtype in declared_formats(subject.unwrapped) if dtype not in computed}
    if base in _HALVES or not unused:
        return None
    names = list(dict.fromkeys(map(any_layer, unused)))
    dtypes = join(sorted({short(dtype) for dtype in unused.values()}))
    reason = (
        f"{plural(len(names), 'it says', 'they say')} {dtypes}, and no operation ran in it: the weights are "
        f"{short(base)}, and nothing casts to it; what the format would save is in the table of fixes"
    )
    return Finding(
        kind="declared", severity="risk", op=join(names[:3]), module="",
        module_class=type(subject.unwrapped).__name__, place=None, operands=(), result=dtypes, reason=reason,
    )  # fmt: skip
