"""What changed at which version, put into lines: changes of a kind are gathered, those that upstream explains first.

Conventions: a *group* holds the changes between two positions that have the same explanation, kind, fix and direction;
it becomes one line that names its cases. Factors are new over old.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from precision_eval.core.formatting import join, memory_text, scientific
from precision_eval.studies.versions.changes import ChangePoint, StatusChange, reach
from precision_eval.studies.versions.history import CaseHistory, VersionHistory
from precision_eval.studies.versions.upstream import UpstreamChange

Change = ChangePoint | StatusChange

METRIC_TITLES = {
    "status": "status",
    "latency_ratio": "latency ÷ full_float32",
    "latency_to_anchor": "latency ÷ anchor",
    "drift": "drift",
    "peak_bytes": "peak memory of a call",
    "stored_bytes": "weights and caches",
    "divergence": "divergence",
    "audio_degradation": "audio degradation",
    "time": "time of a call",
    "peakmem": "peak resident memory",
}
_BYTES = ("peak_bytes", "stored_bytes", "peakmem")
MOST_NAMES = 6


@dataclass(frozen=True, kw_only=True)
class ChangeGroup:
    """Changes that one line tells; all lie between the same two positions.

    Attributes
    ----------
    what : str
        ``"query_to_half: latency ÷ full_float32"``.
    change : str
        ``"raised → passed"``, or the factor or its range.
    where : str
        Cases and modes.
    before : str
        The last position with the old value.
    changes : tuple of Change
    """

    what: str
    change: str
    where: str
    before: str
    changes: tuple[Change, ...]


@dataclass(frozen=True, kw_only=True)
class ChangesAt:
    """What changed at one version or commit."""

    name: str
    since: str
    explained: tuple[tuple[UpstreamChange, tuple[ChangeGroup, ...]], ...]
    unexplained: tuple[ChangeGroup, ...]
    count: int


def changes_of(case: CaseHistory) -> tuple[Change, ...]:
    """Return every change of a case, statuses first."""
    found: list[Change] = [*case.status_changes, *case.changes]
    return tuple(found)


def all_changes(history: VersionHistory) -> tuple[Change, ...]:
    """Return every change of a history."""
    return tuple(change for case in history.cases for change in changes_of(case))


def positions_of(history: VersionHistory) -> tuple[ChangesAt, ...]:
    """Return what changed at each position, in the order of the axis; positions without changes are left out."""
    changes = all_changes(history)
    by_name = {name: [change for change in changes if change.at == name] for name in history.positions}
    return tuple(_position(name, found) for name, found in by_name.items() if found)


def _position(name: str, changes: Sequence[Change]) -> ChangesAt:
    known = {one.id: one for change in changes for one in change.explained_by}
    explained = [(one, _groups(change for change in changes if one in change.explained_by)) for one in known.values()]
    before = {change.before for change in changes}
    return ChangesAt(
        name=name,
        since=before.pop() if len(before) == 1 else "",
        explained=tuple(explained),
        unexplained=_groups(change for change in changes if not change.explained_by),
        count=len(changes),
    )


def _groups(changes: Iterable[Change]) -> tuple[ChangeGroup, ...]:
    """Gather changes of one kind, fix and direction: statuses first, then what is large and frequent."""
    ordered = sorted(changes, key=_kind)
    groups = [tuple(members) for _, members in groupby(ordered, key=_kind)]
    groups.sort(key=lambda members: (_kind(members[0])[0] != "status", -sum(map(_weight, members)), _kind(members[0])))
    return tuple(_group(members) for members in groups)


def _kind(change: Change) -> tuple[str, str, str, bool, str]:
    if isinstance(change, StatusChange):
        return ("status", change.fix, f"{change.old} → {change.new}", False, change.before)
    way = "up" if change.factor > 1.0 else "down"
    return (change.metric, change.fix, way, change.with_baseline, change.before)


def _weight(change: Change) -> float:
    """How much a change weighs in the order of lines: the size of its logarithm, at most that of 1000."""
    if isinstance(change, StatusChange) or change.factor <= 0.0:
        return math.log(1000.0)
    return min(abs(math.log(change.factor)), math.log(1000.0))


def _group(members: tuple[Change, ...]) -> ChangeGroup:
    first = members[0]
    metric = first.key[2]
    note = ", with the float32 baseline" if isinstance(first, ChangePoint) and first.with_baseline else ""
    return ChangeGroup(
        what=f"{first.fix}: {METRIC_TITLES.get(metric, metric)}{note}",
        change=_change_text(members),
        where=_where(members),
        before=first.before,
        changes=members,
    )


def _change_text(members: Sequence[Change]) -> str:
    first = members[0]
    if isinstance(first, StatusChange):
        return f"{status_text(first.old)} → {status_text(first.new)}"
    points = [change for change in members if isinstance(change, ChangePoint)]
    if len(points) == 1:
        old, new = (value_text(value, first.metric) for value in (first.old, first.new))
        return f"{old} → {new}, {factor_text(first.factor, first.factor_interval)}{_seeds(points)}"
    low, high = min(point.factor for point in points), max(one.factor for one in points)
    if f"{low:.2g}" == f"{high:.2g}":
        return f"{factor_text(low)}{_seeds(points)}"
    return f"{factor_text(low)} to {factor_text(high)}{_seeds(points)}"


def _seeds(points: Sequence[ChangePoint]) -> str:
    """Say over how many seeds, where all are of several."""
    counts = {point.seeds for point in points}
    return f" over {counts.pop()} seeds" if len(counts) == 1 and 1 not in counts else ""


def _where(members: Sequence[Change]) -> str:
    """Name cases, many only by number, and modes."""
    cases = list(dict.fromkeys(change.case for change in members))
    modes = list(dict.fromkeys(change.mode for change in members))
    return f"{_names(cases)}; {join(modes)}"


def headline(history: VersionHistory) -> str:
    """Return the answer in one or two sentences."""
    changes = all_changes(history)
    axis = "torch " if history.axis == "torch" else "commit "
    if len(history.positions) < 2:
        return f"Only {axis}{history.positions[0]} was measured: nothing to compare."
    span = f"Between {axis}{history.positions[0]} and {history.positions[-1]}"
    unjudged = _unjudged(history)
    if not changes:
        what = "exact metric changed" if unjudged else "metric changed beyond its noise"
        return f"{span}, no status turned over and no {what}.{unjudged}"
    statuses = sum(isinstance(change, StatusChange) for change in changes)
    places = len({change.at for change in changes})
    known = sum(bool(change.explained_by) for change in changes)
    told = f"{span}, {_count(statuses, 'status')} turned over and {_count(len(changes) - statuses, 'metric')} changed, "
    told += f"at {places} of {len(history.positions) - 1} steps."
    if history.axis == "torch":
        told += f" A known change in torch explains {known} of these {len(changes)}."
    return told + unjudged


def _unjudged(history: VersionHistory) -> str:
    """Say where paired latencies could not be judged, or only with luck; empty where they could."""
    lines: dict[str, list[str]] = {}
    for case in history.cases:
        found, paired = reach(case.series), [series for series in case.series if series.kind == "paired"]
        if found is None and not any(len(run) > 1 for series in paired for run in series.runs):
            continue
        if found is None or found.none:
            lines.setdefault("could not be judged", []).append(case.case)
        elif found.unsure:
            lines.setdefault("could hardly be judged", []).append(case.case)
    return "".join(f" Paired latencies {what}: {_names(names)}." for what, names in lines.items())


def _names(cases: Sequence[str]) -> str:
    """Name cases; many only by number."""
    return join(cases) if len(cases) <= MOST_NAMES else f"{len(cases)} cases"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 'es' if what.endswith('s') else 's'}"


def status_text(status: str) -> str:
    """Write a status in words: ``"out of memory"``."""
    return status.replace("_", " ")


def value_text(value: float | None, metric: str) -> str:
    """Write a value of a metric: bytes in binary units, everything else with three digits."""
    return memory_text(value) if metric in _BYTES else scientific(value, digits=3)


def factor_text(factor: float, interval: tuple[float, float] | None = None) -> str:
    """Write new over old: ``×0.030 [0.028, 0.031]``; from 0 it has none."""
    if not math.isfinite(factor):
        return "from 0"
    text = f"×{scientific(factor, digits=3)}"
    return (
        text
        if interval is None
        else f"{text} [{scientific(interval[0], digits=3)}, {scientific(interval[1], digits=3)}]"
    )
