"""Where a status turns over with the torch version or the commit, and which upstream change did it.

Conventions: the status of a point is one of ``precision_eval.core.records.STATUSES``; a benchmark of the status that
itself broke off is ``"failed"``. Positions where nothing was run are passed over: a change then lies between the last position
that was run and the next. A status repeats, so every change is real.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from precision_eval.studies.versions.points import Key, Point, status_name
from precision_eval.studies.versions.series import Series, SeriesPoint
from precision_eval.studies.versions.upstream import UpstreamChange, explanations


@dataclass(frozen=True, kw_only=True)
class StatusChange:
    """A status that is another one from some position on."""

    mode: str
    case: str
    fix: str
    size: str
    before: str
    at: str
    old: str
    new: str
    explained_by: tuple[UpstreamChange, ...]

    @property
    def key(self) -> Key:
        """Mode, case, metric, fix, size."""
        return (self.mode, self.case, "status", self.fix, self.size)


def status_at(point: SeriesPoint | Point | None) -> str | None:
    """Return the status of a point of a status series."""
    if point is None or point.state == "absent":
        return None
    if point.state != "measured" or point.value is None:
        return point.state
    return status_name(point.value)


def status_changes(
    series: Iterable[Series], upstream: Iterable[UpstreamChange], *, axis: str
) -> tuple[StatusChange, ...]:
    """List where the statuses turn over."""
    upstream = tuple(upstream)
    found = []
    for one in series:
        if one.kind != "status":
            continue
        run = [(point, status) for point in one.points if (status := status_at(point)) not in (None, "not_applicable")]
        for (earlier, old), (later, new) in pairwise(run):
            if old != new and earlier.benchmark_version == later.benchmark_version:
                found.append(_change(one, earlier.position, later.position, (str(old), str(new)), upstream, axis))
    return tuple(found)


def _change(
    series: Series, before: str, at: str, statuses: tuple[str, str], upstream: tuple[UpstreamChange, ...], axis: str
) -> StatusChange:
    known = upstream if axis == "torch" else ()
    return StatusChange(
        mode=series.mode,
        case=series.case,
        fix=series.fix,
        size=series.size,
        before=before,
        at=at,
        old=statuses[0],
        new=statuses[1],
        explained_by=explanations(known, series.key, before=before, at=at, statuses=statuses),
    )
