"""How predictions by a roofline are written: one table per case, and what the model is worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from precision_eval.core.formatting import fixed, join, scientific
from precision_eval.core.table import Strong, Table
from precision_eval.measure.peaks import Peaks
from precision_eval.results.roofline import AGREES, GroupPrediction

TARGET = 0.8
"""Rank correlation with what was measured that a roofline should reach."""


def prediction_table(group: GroupPrediction, peaks: Peaks) -> Table:
    """Return a case's table, fastest predicted first; of another device, without what was measured."""
    here, kernels = group.here, bool(peaks.roofs)
    last = ("measured",) if here else ("drift, measured elsewhere",)
    columns = ("fix", "bytes", "peaks", *(("kernels",) if kernels else ()), *last)
    rows = []
    for row in group.rows:
        figures = [row.bytes_ratio, row.bare, *((row.full,) if kernels else ()), *((row.measured,) if here else ())]
        texts = [fixed(figure, decimals=2) for figure in figures]
        name = Strong(row.fix) if row.fix == group.rows[0].fix else row.fix
        rows.append((name, *texts, *(() if here else (scientific(row.drift),))))
    head = "roofline" if here else f"PREDICTION for {group.device}, not measured"
    align = "l" + "r" * (len(columns) - 1)
    return Table(title=f"{group.title}: {head}", columns=columns, rows=tuple(rows), align=align)


def reason_lines(group: GroupPrediction) -> Iterator[str]:
    """Say of each fix what lies beyond bytes and peaks, and where even the full model misses what was measured."""
    for row in group.rows:
        missed = row.full is not None and row.measured and not 1 / AGREES <= row.measured / row.full <= AGREES
        unmeasured = f"; these peaks do not hold {join(row.unmeasured)}" if row.unmeasured else ""
        reasons = (*row.reasons, *((f"the model misses what was measured{unmeasured}",) if missed else ()))
        if reasons:
            yield f"{row.fix}: {'; '.join(reasons)}."


def peaks_lines(peaks: Peaks, *, here: bool = False) -> Iterator[str]:
    """Say what the prediction rests on."""
    rates = ", ".join(f"{dtype} {fixed(flops / 1e9, decimals=0)}" for dtype, flops in peaks.flops.items())
    bandwidth = " to ".join(fixed(rate / 1e9, decimals=1) for rate in _ends([*peaks.bandwidth.values()]))
    yield f"{peaks.name} ({peaks.source}): memory {bandwidth} GB/s; matrix products in GFLOP/s: {rates}."
    yield from (f"{dtype} is emulated there: {reason}." for dtype, reason in peaks.emulated.items())
    if peaks.roofs:
        fault, call = (fixed(1e6 * seconds, decimals=2) for seconds in (peaks.page_fault_s, peaks.call_s))
        yield f"A page of fresh memory costs {fault} µs, a small operation {call} µs."
        if not peaks.streams:
            yield (
                "These peaks do not hold how fast each kernel reads memory, nor products in both layouts: on that "
                "machine, remove peaks.json and give the command again."
            )
        yield (
            "bytes: what a call moves; peaks: the bare roofline, of memory and matrix products alone; kernels: with "
            "the rates of torch's kernels here, casts, calls and page faults. All are ratios to the baseline."
        )
    else:
        yield "Limits of the device, not of its kernels: launches, caches and torch's choice of kernel are not in it."
        if not here:
            yield "autocast is left out: it picks its dtype by the device."


def _ends(rates: list[float]) -> list[float]:
    return [min(rates), max(rates)] if min(rates) != max(rates) else rates[:1]


def correlation_line(found: Mapping[str, float | None]) -> str:
    """Say how well each model orders what was measured."""
    parts = []
    for name, text in (("bytes_ratio", "bytes"), ("bare", "peaks"), ("full", "kernels")):
        reached = found[name]
        if reached is not None:
            short = "" if reached >= TARGET else " (missed)"
            parts.append(
                f"{text} {fixed(reached, decimals=2)}{short}, off by {fixed(found[f'{name}_factor'], decimals=2)} ×"
            )
    return f"Rank correlation with the measured ratios (target {TARGET}): {'; '.join(parts) or 'too few to tell'}."
