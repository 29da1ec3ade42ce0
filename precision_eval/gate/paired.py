"""From base and head measured side by side in the same processes to changes and one verdict.

Conventions: a process times a fix of base and of head in the same rounds on the same tensors and gives one log-ratio,
head over base; processes are the units of replication, and a cell's variance is at least what its rounds explain. A
latency is *no worse* where its change lies below the margin that clears, with 97.5 % confidence, and a *regression*
where it lies above the margin that alarms, at the level that Holm's procedure gives it in the whole gate
(:mod:`precision_eval.stats.families`). Each process has weights and inputs of its own seed, so that drift is compared
over seeds, in the same way. Memory repeats exactly. There may be two looks: what the first left undecided is measured
in further processes and judged again. Each look has half of either error, so that both together keep to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from precision_eval.core.formatting import counted, grouped
from precision_eval.gate.judging import (
    REQUIRED,
    FigureChange,
    GateResult,
    Key,
    Margins,
    Verdict,
    check_kinds,
    exact_change,
    status_change,
)
from precision_eval.gate.sides import KINDS, GateCell
from precision_eval.stats.families import GATE_ERROR, PairedTest, decide_all
from precision_eval.stats.moderated import fit_prior, moderated_variances, upper_quantile
from precision_eval.stats.sequential import EQUIVALENCE_ALPHA

PAIRED_MARGINS = Margins(latency=0.005, clear=0.01, drift=1.1)
LEAST_PAIRED_PROCESSES = 2
LOOKS = 2
"""How often a cell may be judged; what one look may err is divided by it."""

_CLEARING_ERROR = EQUIVALENCE_ALPHA / 2.0 / LOOKS
_ALIKE_FROM = 2


@dataclass(frozen=True, kw_only=True)
class SideFigures:
    """What a process saw of one fix on one side."""

    status: str = "passed"
    reason: str = ""
    seconds: float | None = None
    to_anchor: float | None = None
    drift: float | None = None
    peak_bytes: int | None = None
    stored_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class PairFigures:
    """What a process saw of one fix on both sides; the log-ratio is of time, head over base."""

    base: SideFigures
    head: SideFigures
    log_ratio: float | None = None
    standard_error: float = 0.0
    elapsed_s: float = 0.0


Measured = Mapping[GateCell, Sequence[PairFigures]]


def judge_pairs(
    measured: Measured,
    *,
    names: tuple[str, str],
    remarks: tuple[Mapping[str, str], Mapping[str, str]],
    margins: Margins = PAIRED_MARGINS,
    required: Sequence[str] = REQUIRED,
    doubts: Sequence[str] = (),
    settled: Sequence[FigureChange] = (),
) -> GateResult:
    """Judge what the processes measured of each cell; what an earlier look settled stands."""
    check_kinds(required)
    changes = {(cell, "status"): _status_change(cell, pairs) for cell, pairs in measured.items()}
    changes |= _latency_changes(measured, margins)
    changes |= _anchor_changes(measured)
    changes |= _drift_changes(measured, margins)
    changes |= {(change.place, change.metric): change for change in settled}
    changes |= {
        (cell, metric): exact_change(cell, metric, *both, margin=margins.memory)
        for cell, pairs in measured.items()
        for metric in ("peak_bytes", "stored_bytes")
        if None not in (both := (getattr(pairs[0].base, metric), getattr(pairs[0].head, metric)))
    }
    return GateResult(
        base=names[0],
        head=names[1],
        base_remarks=remarks[0],
        head_remarks=remarks[1],
        margins=margins,
        changes=tuple(changes[key] for key in sorted(changes)),
        doubts=(*doubts, *_alike(changes)),
        required=tuple(required),
        paired=True,
    )


def split_by_look(result: GateResult) -> tuple[frozenset[GateCell], list[FigureChange]]:
    """Return the cells that a second look would be about, and what the first one settled."""
    kinds = {metric for kind in result.required for metric in KINDS[kind]} & {"latency", "drift"}
    settled = [c for c in result.changes if c.metric in ("latency", "drift") and c.verdict != "undecided"]
    return frozenset(c.place for c in result.of("undecided") if c.metric in kinds), settled


def _status_change(cell: GateCell, pairs: Sequence[PairFigures]) -> FigureChange:
    pair = next((pair for pair in pairs if pair.base.status != pair.head.status), pairs[0])
    statuses = pair.base.status, pair.head.status
    return status_change(cell, statuses, reason=pair.head.reason or pair.base.reason)


def _latency_changes(measured: Measured, margins: Margins) -> dict[Key, FigureChange]:
    logs = {cell: [pair.log_ratio for pair in pairs if pair.log_ratio is not None] for cell, pairs in measured.items()}
    within = {cell: float(np.mean([pair.standard_error**2 for pair in pairs])) for cell, pairs in measured.items()}
    changes: dict[Key, FigureChange] = {}
    clear = margins.latency if margins.clear is None else margins.clear
    for cell, change in _judged("latency", logs, within, margin=margins.latency, clear=clear).items():
        pairs = measured[cell]
        base, head = _middle([pair.base.seconds for pair in pairs]), _middle([pair.head.seconds for pair in pairs])
        note = ""
        if change.verdict == "undecided":
            elapsed_s = sum(pair.elapsed_s for pair in pairs)
            note = _needed(change, margins=(margins.latency, clear), elapsed_s=elapsed_s, processes=len(pairs))
        changes[cell, "latency"] = replace(change, base=base, head=head, note=note)
    return changes


def _anchor_changes(measured: Measured) -> dict[Key, FigureChange]:
    """Show each side's time over the anchor's: what the machine, or what both sides share, did to all of them."""
    changes: dict[Key, FigureChange] = {}
    for cell, pairs in measured.items():
        base, head = _middle([pair.base.to_anchor for pair in pairs]), _middle([pair.head.to_anchor for pair in pairs])
        if base is not None and head is not None:
            changes[cell, "latency_to_anchor"] = FigureChange(
                place=cell, metric="latency_to_anchor", verdict="shown", base=base, head=head, ratio=head / base
            )
    return changes


def _drift_changes(measured: Measured, margins: Margins) -> dict[Key, FigureChange]:
    """Compare the distances to one reference, base's in float64, seed by seed."""
    both = {
        cell: [(p.base.drift, p.head.drift) for p in pairs if p.base.drift is not None and p.head.drift is not None]
        for cell, pairs in measured.items()
    }
    logs = {cell: [math.log(h / b) for b, h in drifts] for cell, drifts in both.items() if _all_positive(drifts)}
    changes: dict[Key, FigureChange] = {}
    beyond = margins.drift - 1.0
    for cell, change in _judged("drift", logs, dict.fromkeys(logs, 0.0), margin=beyond, clear=beyond).items():
        base, head = np.exp(np.log(both[cell]).mean(axis=0)).tolist()
        changes[cell, "drift"] = replace(change, base=base, head=head, note=f"of {counted(len(both[cell]), 'seed')}")
    for cell, drifts in both.items():
        if drifts and cell not in logs:  # a ratio to nothing, or of nothing
            worst = max(drifts, key=lambda drift: (drift[0] == 0.0 < drift[1], drift[1]))
            changes[cell, "drift"] = exact_change(cell, "drift", *worst, margin=beyond)
    return changes


def _all_positive(drifts: Sequence[tuple[float, float]]) -> bool:
    return bool(drifts) and min(map(min, drifts)) > 0.0


def _judged(
    metric: str,
    logs: Mapping[GateCell, Sequence[float]],
    within: Mapping[GateCell, float],
    *,
    margin: float,
    clear: float,
) -> dict[GateCell, FigureChange]:
    """Judge all cells of one metric as one family; variances are shared among them."""
    values = {cell: np.array(own) for cell, own in logs.items() if len(own) >= LEAST_PAIRED_PROCESSES}
    if not values:
        return {}
    pooled = [max(float(own.var(ddof=1)), within[cell]) for cell, own in values.items()]
    degrees = [own.size - 1.0 for own in values.values()]
    variances, total = moderated_variances(pooled, degrees, fit_prior(pooled, degrees))
    tests = {
        cell: PairedTest(
            estimate=float(own.mean()),
            standard_error=math.sqrt(variance / own.size),
            degrees=float(freedom),
            margin=math.log1p(margin),
        )
        for (cell, own), variance, freedom in zip(values.items(), variances, total, strict=True)
    }
    changes = {}
    for cell, decision in decide_all(tests, error=GATE_ERROR / LOOKS).items():
        test = tests[cell]
        reach = upper_quantile(_CLEARING_ERROR, test.degrees) * test.standard_error
        below = test.estimate + reach <= math.log1p(clear)
        verdict: Verdict = decision.verdict if decision.verdict in ("regression", "improvement") else "undecided"
        changes[cell] = FigureChange(
            place=cell,
            metric=metric,
            verdict="no worse" if verdict == "undecided" and below else verdict,
            base=None,
            head=None,
            ratio=math.exp(test.estimate),
            low=math.exp(test.estimate - reach),
            high=math.exp(test.estimate + reach),
            margin=margin,
            detectable=math.expm1(decision.detectable),
            processes=(values[cell].size, values[cell].size),
        )
    return changes


def _needed(change: FigureChange, *, margins: tuple[float, float], elapsed_s: float, processes: int) -> str:
    """Say how long would decide: until the interval, which narrows as 1/√time, leaves one of the margins."""
    assert change.ratio is not None
    assert change.high is not None
    (alarm, clear), half = map(math.log1p, margins), math.log(change.high / change.ratio)
    distance = max(math.log(change.ratio) - alarm, clear - math.log(change.ratio))
    distance = max(distance, clear / 2.0)  # where noise put it is no better known
    if half <= distance or distance == 0.0:
        return "as large as the margin itself: no time would decide; ask for another margin"
    times = max((half / distance) ** 2, 1.5)  # the level of a regression is stricter than the interval
    return f"about {times * elapsed_s:.2g} s would decide: --processes {math.ceil(times * processes)}"


def _alike(changes: Mapping[Key, FigureChange]) -> list[str]:
    """Say where every fix of a case became slower: then it is what they share that did."""
    groups = grouped(
        ((cell.case, cell.mode), change) for (cell, metric), change in changes.items() if metric == "latency"
    )
    return [
        f"every fix of {case} ({mode}) became slower: look at what they share, the model's own code"
        for (case, mode), group in groups.items()
        if len(group) >= _ALIKE_FROM and all(change.verdict == "regression" for change in group)
    ]


def _middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None
