"""From figures of both sides, measured in the same processes, to changes and one verdict.

Conventions: each process gives one log-ratio of time, head over base, and one of drift, as it has weights and inputs of
its own seed. All log-ratios of a gate are one family of paired t-tests (:mod:`precision_eval.stats.families`), which
keeps the rate of any false regression at :data:`GATE_ERROR`. There may be two looks: what the first leaves undecided is
measured in further processes and judged again, and each look has half of either error. Memory repeats exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from precision_eval.core.formatting import grouped
from precision_eval.gate.result import (
    KINDS,
    FigureChange,
    GateCell,
    GateResult,
    Key,
    Margins,
    PairFigures,
    Verdict,
    check_kinds,
)
from precision_eval.stats.families import FamilyDecision, PairedTest, decide_all, paired_test, upper_quantile
from precision_eval.stats.sequential import EQUIVALENCE_ALPHA

# Rate at which a gate of an unchanged tree may be red, all cells, metrics and looks together.
GATE_ERROR = 0.01
LOOKS = 2

_CLEAR_ERROR = EQUIVALENCE_ALPHA / 2.0 / LOOKS
_TRIALS_ADVISED = 0.9  # share of trials in which the effort that is advised settles an unchanged cell
_MOST_PROCESSES = 100

Measured = Mapping[GateCell, Sequence[PairFigures]]


def judge_pairs(
    measured: Measured,
    *,
    names: tuple[str, str],
    machine: Mapping[str, str],
    margins: Margins,
    required: Sequence[str] = ("latency",),
    doubts: Sequence[str] = (),
    settled: Sequence[FigureChange] = (),
    unchanged: Sequence[str] = (),
    are_defaults: bool = False,
) -> GateResult:
    """Judge what the processes measured of each cell; what an earlier look settled stays.

    `are_defaults`: where nobody named the fixes and head cures a case as shipped, what that costs another is shown.
    """
    check_kinds(required)
    changes = {(cell, "status"): _status_change(cell, pairs) for cell, pairs in measured.items()}
    changes |= _noisy_changes(measured, margins)
    changes |= {(change.place, change.metric): change for change in settled}
    for cell, pairs in measured.items():
        for metric in ("peak_bytes", "stored_bytes"):
            base, head = getattr(pairs[0].base, metric), getattr(pairs[0].head, metric)
            if base is not None and head is not None:
                changes[cell, metric] = exact_change(cell, metric, base, head, margin=margins.memory)
    if are_defaults:
        shipped = ((cell.case, changes.get((cell._replace(fix="as_shipped"), "status"))) for cell, _ in changes)
        cured = {case for case, status in shipped if status is not None and status.verdict == "improvement"}
        changes |= {
            key: replace(change, verdict="shown", note="not judged: base fails as shipped")
            for key, change in changes.items()
            if key[0].case in cured and key[1] != "status" and change.verdict in ("regression", "undecided")
        }
    return GateResult(
        base=names[0],
        head=names[1],
        machine=machine,
        margins=margins,
        changes=tuple(changes[key] for key in sorted(changes)),
        unchanged=tuple(unchanged),
        doubts=(*doubts, *_shared_slowdowns(changes)),
        required=tuple(required),
    )


def split_by_look(result: GateResult) -> tuple[frozenset[GateCell], list[FigureChange]]:
    """Return the cells that a second look is about, and what the first one settled."""
    required = {metric for kind in result.required for metric in KINDS[kind]}
    undecided = frozenset(change.place for change in result.of("undecided") if change.metric in required)
    return undecided, [c for c in result.changes if c.metric in ("latency", "drift") and c.verdict != "undecided"]


def _status_change(cell: GateCell, pairs: Sequence[PairFigures]) -> FigureChange:
    """Judge what both sides came to: leaving *passed* is worse, reaching it an improvement."""
    pair = next((pair for pair in pairs if pair.base.status != pair.head.status), pairs[0])
    base, head = pair.base.status, pair.head.status
    if base == head:
        return FigureChange(place=cell, metric="status", verdict="no worse", base=base, head=head)
    verdict: Verdict = "regression" if base == "passed" else "improvement" if head == "passed" else "shown"
    note = pair.head.reason or pair.base.reason
    return FigureChange(place=cell, metric="status", verdict=verdict, base=base, head=head, note=note)


def exact_change(place: GateCell, metric: str, before: float, after: float, *, margin: float) -> FigureChange:
    """Judge two figures that repeat."""
    ratio = after / before if before else (1.0 if after == before else None)
    is_worse = ratio is None or ratio > 1.0 + margin
    is_better = ratio is not None and ratio * (1.0 + margin) < 1.0
    verdict: Verdict = "regression" if is_worse else "improvement" if is_better else "no worse"
    note = "from exactly 0" if ratio is None else ""
    return FigureChange(
        place=place, metric=metric, verdict=verdict, base=before, head=after, ratio=ratio, margin=margin, note=note
    )


def _noisy_changes(measured: Measured, margins: Margins) -> dict[Key, FigureChange]:
    """Judge latency and drift of all cells as one family."""
    tests: dict[Key, PairedTest] = {}
    values: dict[Key, tuple[float, float]] = {}
    exact: dict[Key, FigureChange] = {}
    for cell, pairs in measured.items():
        timed = [pair for pair in pairs if pair.log_ratio is not None]
        if len(timed) > 1:
            tests[cell, "latency"] = _latency_test(timed, margins)
            seconds = [(pair.base.seconds, pair.head.seconds) for pair in timed]
            values[cell, "latency"] = tuple(np.median(np.array(seconds, dtype=float), axis=0).tolist())
        drifts = [
            (pair.base.drift, pair.head.drift)
            for pair in pairs
            if pair.base.drift is not None and pair.head.drift is not None
        ]
        if len(drifts) > 1 and min(map(min, drifts)) > 0.0:
            logs, beyond = np.log(drifts), margins.drift - 1.0
            tests[cell, "drift"] = paired_test(np.diff(logs)[:, 0].tolist(), alarm=beyond, clear=beyond)
            values[cell, "drift"] = tuple(np.exp(logs.mean(axis=0)).tolist())
        elif drifts:  # there is no ratio to 0
            worst = max(drifts, key=lambda drift: (drift[0] == 0.0 < drift[1], drift[1]))
            exact[cell, "drift"] = exact_change(cell, "drift", *worst, margin=margins.drift - 1.0)
    decided = decide_all(tests, error=GATE_ERROR / LOOKS, clear_error=_CLEAR_ERROR)
    changes = {key: _noisy_change(key, test, decided[key], values[key]) for key, test in tests.items()}
    for key, change in changes.items():
        if key[1] == "latency" and change.verdict == "undecided":
            changes[key] = replace(change, note=_advice(tests[key], measured[key[0]][0].budget_s))
    return exact | changes


def _latency_test(timed: Sequence[PairFigures], margins: Margins) -> PairedTest:
    logs = [pair.log_ratio for pair in timed if pair.log_ratio is not None]
    within = float(np.mean([pair.standard_error**2 for pair in timed]))  # processes may agree by chance
    return paired_test(logs, alarm=margins.latency, clear=margins.clear_latency, least_variance=within)


def _noisy_change(key: Key, test: PairedTest, decision: FamilyDecision, values: tuple[float, float]) -> FigureChange:
    """Return a decision as ratios in place of logarithms."""
    return FigureChange(
        place=key[0],
        metric=key[1],
        verdict=decision.verdict,
        base=values[0],
        head=values[1],
        ratio=math.exp(test.estimate),
        low=math.exp(decision.low),
        high=math.exp(decision.high),
        margin=math.expm1(test.alarm),
        detectable=math.expm1(decision.detectable),
        processes=int(test.degrees) + 1,
    )


def _advice(test: PairedTest, budget_s: float) -> str:
    """Say which effort would clear the cell, were it unchanged, in nine of ten trials; or which margin would do."""
    from scipy.special import chdtri

    count = test.degrees + 1.0
    unlucky = math.sqrt(test.degrees / chdtri(test.degrees, _TRIALS_ADVISED))  # the spread may be so much larger
    spread = test.standard_error * math.sqrt(count) * unlucky
    for processes in range(int(count) + 1, _MOST_PROCESSES + 1):
        if _reach(spread, processes) <= test.clear:
            effort = f"--set processes={processes} --set budget={processes * budget_s:.2g}"
            return f"{effort} settles an unchanged cell in nine of ten trials"
    margin = math.expm1(_reach(spread, int(count)))
    return f"this machine cannot detect so small a change; it can with --set margin_latency={100.0 * margin:.2g}%"


def _reach(spread: float, processes: int) -> float:
    """Largest upper end of the interval that nine of ten unchanged cells have."""
    t = upper_quantile(_CLEAR_ERROR, processes - 1.0) + upper_quantile(1.0 - _TRIALS_ADVISED, processes - 1.0)
    return t * spread / math.sqrt(processes)


def _shared_slowdowns(changes: Mapping[Key, FigureChange]) -> list[str]:
    groups = grouped(
        ((cell.case, cell.mode), change) for (cell, metric), change in changes.items() if metric == "latency"
    )
    return [
        f"every fix of {case} ({mode}) became slower: look at the model's own code, which they share"
        for (case, mode), group in groups.items()
        if len(group) > 1 and all(change.verdict == "regression" for change in group)
    ]
