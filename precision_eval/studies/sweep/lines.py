"""The lines of ``lengths.jsonl``: written by workers, combined over processes on read; loads no torch.

Conventions: one line per configuration, length and process. A ratio over several processes is their mean log-ratio
with the spread between processes as its error (:func:`~precision_eval.stats.over_processes`). Only lines of the
campaign of the *last* line are read: other environments, budgets or seeds are another measurement. Lines of another
revision of the measuring are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from precision_eval.core.cells import Outcome
from precision_eval.core.errors import RecordError
from precision_eval.stats import PairedRatio, over_processes
from precision_eval.stats.crossover import Point, point_of
from precision_eval.studies.sweep.plan import FIXES, REVISION, TO_HALF, TO_QUERY, Configuration, Job

CASTS, NOISE_FLOOR = "casts", "noise_floor"
"""Names of ratios beside the fixes: ``kv_to_query`` over ``query_to_half``, and a copy of the baseline over it."""

Line = dict[str, Any]
_TOGETHER = {CASTS: 1, NOISE_FLOOR: 3, TO_HALF: 3, TO_QUERY: 3}  # ratios that share the error rate of their group


def line_of(
    job: Job,
    length: int,
    outcomes: Mapping[str, Outcome],
    *,
    ratios: Mapping[str, PairedRatio] | None = None,
    page_faults: Mapping[str, float] | None = None,
) -> Line:
    """Return what one process found at one length as plain data."""
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
    """What was found at one length of one configuration."""

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
        degrees = self.processes - 1 if self.processes > 1 else ratio.blocks - 1
        return point_of(
            self.length,
            ratio=ratio.ratio,
            low=ratio.ratio_low,
            high=ratio.ratio_high,
            confidence=ratio.confidence,
            degrees=degrees,
        )


@dataclass(frozen=True, kw_only=True)
class Series:
    """One configuration over its lengths.

    Attributes
    ----------
    configuration : Configuration
    points : tuple of LengthPoint
        Shortest first.
    """

    configuration: Configuration
    points: tuple[LengthPoint, ...]

    def crossover_points(self) -> tuple[Point, ...]:
        """Return the ratios of the two casts, where there are any."""
        return tuple(point for one in self.points if (point := one.crossover_point()) is not None)


def series_of(lines: Sequence[Line]) -> tuple[Series, ...]:
    """Combine lines over processes."""
    try:
        mine = [line for line in lines if line["campaign"] == lines[-1]["campaign"]]
        grouped: dict[Configuration, dict[int, list[Line]]] = {}
        for line in mine:
            lengths = grouped.setdefault(Configuration(**line["configuration"]), {})
            lengths.setdefault(line["length"], []).append(line)
        _check_revision(mine)
        return tuple(
            Series(configuration=one, points=tuple(_point(n, lengths[n]) for n in sorted(lengths)))
            for one, lengths in grouped.items()
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
    found = {name: [_ratio(line["ratios"][name]) for line in lines if name in line["ratios"]] for name in _TOGETHER}
    failures = {
        fix: f"{line['status'][fix]}: {line['reason'].get(fix, 'no reason recorded')}"
        for line in lines
        for fix in FIXES
        if line["status"][fix] != "passed"
    }
    return LengthPoint(
        length=length,
        processes=len(found[CASTS]),
        ratios={name: _combined(name, ratios) for name, ratios in found.items() if ratios},
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
