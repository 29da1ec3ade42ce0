"""What a roofline makes of a run: time of each fix from its work and a machine's peaks, beside what was measured.

Conventions: every time is a ratio to the baseline's on the same machine. An operation takes the longer of its bytes at
memory's bandwidth and its FLOPs at the peak of matrix products in its dtype; a call takes the sum of its operations.
The *bare* roofline is this and no more, and all that published peaks allow. The *full* one has the roofs of the kernels
themselves, casts, the cost of a call, and pages of fresh memory, as they were measured on that machine. Where the two
differ, the difference is a reason, by name.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from precision_eval.core.formats import FORMATS
from precision_eval.core.formatting import fixed, percent
from precision_eval.measure.peaks import PAGE_BYTES, Peaks, rows_of
from precision_eval.results.model import Group
from precision_eval.stats.ranks import rank_correlation

BASELINE = "full_float32"
AGREES = 1.25
"""Factor between prediction and measurement up to which a fix needs no reason."""

_NAMED = 0.15  # share of a call's time from which on something is a reason

Work = Mapping[str, Any]


def itemsize(dtype: str) -> int:
    """Bytes of a number; of what does not float, 4."""
    return next((item.bits // 8 for item in FORMATS if item.name == dtype), 4)


def bare_times(work: Work, peaks: Peaks) -> Counter[tuple[str, str]]:
    """Seconds by kind and dtype of operation under the bare roofline."""
    rate = peaks.bandwidth_at(work["touched_bytes"])
    seconds: Counter[tuple[str, str]] = Counter()
    for own in work["operations"]:
        flops_s = own["flops"] / peaks.flops.get(own["dtype"], math.inf)
        seconds[own["kind"], own["dtype"]] += max(own["bytes"] / rate, flops_s)
    return seconds


def full_times(work: Work, peaks: Peaks) -> Counter[tuple[str, str]]:
    """Seconds by kind and dtype of operation with the roofs of the kernels, casts, calls and page faults."""
    seconds: Counter[tuple[str, str]] = Counter()
    for own in work["operations"]:
        kind, dtype, size = own["kind"], own["dtype"], own["bytes"]
        each = size / max(own["count"], 1)
        memory_s = size / peaks.bandwidth_at(work["touched_bytes"], f"{kind} {dtype}", each)
        seconds["call", ""] += own["count"] * peaks.call_s
        if kind == "cast":
            seconds[kind, dtype] += max(memory_s, size / peaks.casts.get(dtype, math.inf))
            continue
        shared = own.get("rows") or (rows_of(own["flops"], size, itemsize(dtype)) if size else 0.0)
        roof = peaks.roof(kind, dtype, shared, each) if own["flops"] else None
        seconds[kind, dtype] += max(memory_s, 0.0 if roof is None else own["flops"] / roof)
    seconds["page faults", ""] += work.get("page_faults", work["fresh_bytes"] / PAGE_BYTES) * peaks.page_fault_s
    return seconds


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Time of a fix as a ratio to the baseline's: bare and full roofline, and as measured; None where there is none.

    `drift` is the relative error that was measured where the run was made; `unmeasured` is what no peak tells.
    """

    fix: str
    bytes_ratio: float
    bare: float
    full: float | None
    measured: float | None
    drift: float | None = None
    reasons: tuple[str, ...] = ()
    unmeasured: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GroupPrediction:
    """Predictions for the fixes of a group."""

    title: str
    baseline: str
    device: str
    here: bool
    rows: tuple[Prediction, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def predicted_groups(
    groups: Iterable[Group], peaks: Peaks, *, counted: Iterable[Group] = (), here: bool | None = None
) -> list[GroupPrediction]:
    """Predict every group whose traces hold the work of a call; with `peaks` of another device nothing is measured.

    They are of the run's own where they hold `roofs`, unless `here` says it.

    What a call does is no matter of the machine: where `counted` holds the same cell, its work is taken from there.
    """
    here = bool(peaks.roofs) if here is None else here
    found, better = [], {key: work for group in counted for _, key, work in _counted(group)}
    for group in groups:
        works = timed_works(group, better)
        if not here:
            works.pop("autocast", None)  # whose dtype is the device's choice, and another one on a GPU
        measured = {row.fix: row.time.value for row in group.curing if row.time is not None} if here else {}
        if BASELINE in works and len(works) > 1:
            drifts = {row.fix: row.drift.value for row in group.curing if row.drift is not None}
            rows = predictions(works, peaks, measured, drifts, baseline=BASELINE)
            own = GroupPrediction(title=group.title, baseline=BASELINE, device=peaks.name, here=here, rows=rows)
            found.append(own)
    return found


def _counted(group: Group) -> Iterable[tuple[str, tuple[str, str], Work]]:
    """Yield fix, cell with its definition, and work of every trace that holds it."""
    for row in group.curing:
        if work := (row.data("trace") or {}).get("work"):
            record = row.records["trace"]
            yield row.fix, (record.cell, record.case_digest), work


def timed_works(group: Group, better: Mapping[tuple[str, str], Work] | None = None) -> dict[str, dict[str, Any]]:
    """Return the work of each fix that has a trace, as it was timed.

    One call a block, between those of the others, finds its operands in no cache. And of two blocks beyond glibc's
    threshold one may come from what the others have left free in the heap: page faults are those that were counted.
    """
    works = {fix: dict((better or {}).get(key, work)) for fix, key, work in _counted(group)}
    touched = sum(work["touched_bytes"] for work in works.values())
    for row in group.curing:
        timed = row.data("latency") or {}
        if row.fix in works and timed.get("calls_per_block") == 1:
            works[row.fix]["touched_bytes"] = touched
        if row.fix in works and timed.get("page_faults_per_call") is not None:
            works[row.fix]["page_faults"] = timed["page_faults_per_call"]
    return works


def predictions(
    works: Mapping[str, Work],
    peaks: Peaks,
    measured: Mapping[str, float] | None = None,
    drifts: Mapping[str, float] | None = None,
    *,
    baseline: str,
) -> tuple[Prediction, ...]:
    """Predict fixes from the work of a call under each; without `roofs` in the peaks by the bare roofline alone."""
    base = works[baseline]
    bare_base, full_base = bare_times(base, peaks).total(), full_times(base, peaks).total()
    rows = []
    for fix, work in works.items():
        bare, full = bare_times(work, peaks), full_times(work, peaks)
        rows.append(
            Prediction(
                fix=fix,
                bytes_ratio=moved_bytes(work) / moved_bytes(base),
                bare=bare.total() / bare_base,
                full=full.total() / full_base if peaks.roofs else None,
                measured=(measured or {}).get(fix),
                drift=(drifts or {}).get(fix),
                reasons=tuple(_reasons(work, full, peaks)),
                unmeasured=tuple(_unmeasured(full, peaks)),
            )
        )
    return tuple(sorted(rows, key=lambda row: (row.bare if row.full is None else row.full, row.fix)))


def moved_bytes(work: Work) -> int:
    """Bytes that a call moves."""
    return sum(own["bytes"] for own in work["operations"])


def _reasons(work: Work, full: Counter[tuple[str, str]], peaks: Peaks) -> Iterable[str]:
    """Say what of a fix lies beyond bytes and peaks: emulated formats, slow kernels, casts, page faults."""
    dtypes = {own["dtype"] for own in work["operations"] if own["flops"]}
    yield from (f"{dtype} is emulated: {peaks.emulated[dtype]}" for dtype in sorted(dtypes & peaks.emulated.keys()))
    total = full.total()
    if not peaks.roofs or not total:
        return
    fastest = dict.fromkeys(peaks.flops, max(peaks.flops.values()))  # of all formats: a slow one is a reason
    bare = bare_times(work, replace(peaks, flops=fastest))
    for (kind, dtype), seconds in sorted(full.items(), key=lambda item: -item[1]):
        allowed = bare.get((kind, dtype), 0.0)
        if seconds / total < _NAMED or kind == "other":
            continue
        if kind in _COSTS:
            yield f"{_COSTS[kind].format(dtype)} take {percent(seconds / total, decimals=0)} of its time"
        elif seconds > 2.0 * allowed:
            yield f"torch's {kind} in {dtype} takes {fixed(seconds / allowed, decimals=1)} × what its bytes would"


def _unmeasured(full: Counter[tuple[str, str]], peaks: Peaks) -> Iterable[str]:
    """Say which parts of a fix's time rest on rates that its peaks do not hold: where a miss may come from."""
    shares: defaultdict[str, float] = defaultdict(float)
    total = full.total() or 1.0
    for (kind, dtype), seconds in full.items():
        if kind == "other":  # in a half format it may be computed in float32, number by number
            shares["other operations beyond their bytes"] += seconds / total
        elif kind not in _COSTS and f"{kind} {dtype}" not in peaks.streams:
            shares[f"{kind} in {dtype} from memory"] += seconds / total
    return (
        f"{text} ({percent(share, decimals=0)} of its time)"
        for text, share in sorted(shares.items(), key=lambda item: -item[1])
        if share >= _NAMED
    )


_COSTS = {"page faults": "page faults{}", "call": "calls of small operations{}", "cast": "casts of {}"}


def correlations(groups: Sequence[GroupPrediction]) -> dict[str, float | None]:
    """Rank correlation of the measured fixes but the baselines, of three or more, and the error's typical factor."""
    found: dict[str, float | None] = {}
    for name in ("bytes_ratio", "bare", "full"):
        pairs = [
            (float(predicted), row.measured)
            for group in groups
            for row in group.rows
            if row.measured is not None and row.fix != group.baseline
            if (predicted := getattr(row, name)) is not None
        ]
        enough = len(pairs) > 2  # the order of two is no evidence
        found[name] = rank_correlation(*np.round(pairs, 12).T) if enough else None
        logs = sorted(abs(math.log(predicted / measured)) for predicted, measured in pairs)
        found[f"{name}_factor"] = math.exp(logs[len(logs) // 2]) if logs else None
    return found
