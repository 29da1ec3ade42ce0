"""The lines of ``lengths.jsonl`` combined over processes: one curve over length per configuration; loads no torch.

Conventions: one line per configuration, length and process. A ratio over several processes is their mean log-ratio
with the spread between processes as its error (:func:`~precision_eval.stats.over_processes`). Only lines of the
campaign of the *last* line are read: other environments, budgets or seeds are another measurement. Lines of another
revision of the measuring are refused. The ratio that crosses is ``kv_to_query`` over ``query_to_half``; above 1 the
latter is faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import Any

from precision_eval.core.cells import Outcome
from precision_eval.core.errors import RecordError
from precision_eval.stats import PairedRatio, over_processes
from precision_eval.stats.crossover import Crossover, Point, find_crossover, point_of
from precision_eval.studies.sweep.plan import FIXES, REVISION, TO_HALF, TO_QUERY, SweepConfiguration, SweepJob

CASTS, NOISE_FLOOR = "casts", "noise_floor"
"""Names of ratios beside the fixes: ``kv_to_query`` over ``query_to_half``, and a copy of the baseline over it."""

Line = dict[str, Any]
_TOGETHER = {CASTS: 1, NOISE_FLOOR: 3, TO_HALF: 3, TO_QUERY: 3}  # ratios that share the error rate of their group


def line_of(
    job: SweepJob,
    length: int,
    outcomes: Mapping[str, Outcome],
    *,
    ratios: Mapping[str, PairedRatio] | None = None,
    page_faults: Mapping[str, float] | None = None,
) -> Line:
    """Return what one process measured at one length, as plain data."""
    return {
        "key": job.key(length),
        "campaign": job.campaign,
        "revision": REVISION,
        "configuration": asdict(job.configuration),
        "length": length,
        "process": job.process,
        "status": {fix: outcome.status for fix, outcome in outcomes.items()},
        "reason": {fix: outcome.reason for fix, outcome in outcomes.items() if outcome.reason},
        "ratios": {name: ratio.to_dict() for name, ratio in (ratios or {}).items()},
        "page_faults": dict(page_faults or {}),
    }


@dataclass(frozen=True, kw_only=True)
class LengthPoint:
    """One length of one configuration, over all processes."""

    length: int
    processes: int
    ratios: Mapping[str, PairedRatio]
    page_faults: Mapping[str, tuple[float, ...]]
    failures: Mapping[str, str]

    def crossover_point(self) -> Point | None:
        """Return the ratio of the two casts as the crossover needs it, None where there is none."""
        ratio = self.ratios.get(CASTS)
        if ratio is None:
            return None
        return point_of(
            self.length,
            ratio=ratio.ratio,
            low=ratio.ratio_low,
            high=ratio.ratio_high,
            confidence=ratio.confidence,
            degrees=self.processes - 1 if self.processes > 1 else ratio.blocks - 1,
        )


@dataclass(frozen=True, kw_only=True)
class LengthCurve:
    """One configuration over its lengths, shortest first."""

    configuration: SweepConfiguration
    points: tuple[LengthPoint, ...]

    def crossover_points(self) -> tuple[Point, ...]:
        """Return the ratios of the two casts, where there are any."""
        return tuple(found for point in self.points if (found := point.crossover_point()) is not None)

    @cached_property
    def crossover(self) -> Crossover | None:
        """Where the order of the casts turns; None without any ratio.

        A crossing is read off a straight line, unless page faults jump in its bracket: where the copy of the cache has
        outgrown what the C library uses again, its cost rises at one length, so that only the bracket is known.
        """
        points = self.crossover_points()
        if not points:
            return None
        crossover = find_crossover(points, seed=0)
        crossings = (
            replace(crossing, jump=jump_of_faults(self.points, between=crossing.between))
            for crossing in crossover.crossings
        )
        return replace(crossover, crossings=tuple(crossings))


def jump_of_faults(points: Sequence[LengthPoint], *, between: tuple[int, int]) -> tuple[int, int] | None:
    """Return the lengths between which page faults of ``kv_to_query`` per slot more than double; None if nowhere."""
    low, high = between
    faults = {
        point.length: median(point.page_faults[TO_QUERY])
        for point in points
        if low <= point.length <= high and point.page_faults.get(TO_QUERY)
    }
    jumps = []
    for a, b in pairwise(faults):
        less, more = sorted((faults[a] / a, faults[b] / b))
        if more > 2.0 * less and max(faults[a], faults[b]) >= 1.0:
            jumps.append((a, b))
    return (jumps[0][0], jumps[-1][1]) if jumps else None


def curves_of(lines: Sequence[Line]) -> tuple[LengthCurve, ...]:
    """Combine lines over processes."""
    try:
        own = [line for line in lines if line["campaign"] == lines[-1]["campaign"]]
        grouped: dict[SweepConfiguration, dict[int, list[Line]]] = {}
        for line in own:
            lengths = grouped.setdefault(SweepConfiguration(**line["configuration"]), {})
            lengths.setdefault(line["length"], []).append(line)
        _check_revision(own)
        return tuple(
            LengthCurve(configuration=configuration, points=tuple(_point(n, lengths[n]) for n in sorted(lengths)))
            for configuration, lengths in grouped.items()
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise RecordError(
            f"the lines are not those of a length sweep ({error!r}); remove lengths.jsonl and run it again"
        ) from error


def _check_revision(lines: Sequence[Line]) -> None:
    """Raise where another revision has measured; lines of the first state none."""
    strange = {line.get("revision", 1) for line in lines} - {REVISION}
    if strange:
        raise RecordError(
            f"the sweep was measured by revision {min(strange)}, this reads revision {REVISION}, whose ratios are made "
            "in another way; measure again: precision-eval sweep"
        )


def _point(length: int, lines: Sequence[Line]) -> LengthPoint:
    ratios = {name: [_ratio(line["ratios"][name]) for line in lines if name in line["ratios"]] for name in _TOGETHER}
    failures = {
        fix: f"{line['status'][fix]}: {line['reason'].get(fix, 'no reason recorded')}"
        for line in lines
        for fix in FIXES
        if line["status"][fix] != "passed"
    }
    return LengthPoint(
        length=length,
        processes=len(ratios[CASTS]),
        ratios={name: _combined(name, measured) for name, measured in ratios.items() if measured},
        page_faults={
            fix: tuple(line["page_faults"][fix] for line in lines if fix in line["page_faults"]) for fix in FIXES
        },
        failures=failures,
    )


def _combined(name: str, ratios: Sequence[PairedRatio]) -> PairedRatio:
    return ratios[0] if len(ratios) == 1 else over_processes(ratios, candidates=_TOGETHER[name])


def _ratio(data: Mapping[str, Any]) -> PairedRatio:
    """Read a ratio back; what a later version adds is ignored."""
    known = {field.name for field in fields(PairedRatio)}
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in data.items() if name in known
    }
    return PairedRatio(**values)
