"""Groups from records: what each fix measured, with its interval, its statuses and its doubts.

Conventions: the last record of a cell counts. Records of unlike case digests, or of unlike baselines, are not
compared: their group has no rows, and says why. Figures of unlike environments are a doubt.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from precision_eval.core.cells import pins_text
from precision_eval.core.environment import environment_of
from precision_eval.core.errors import RecordError
from precision_eval.core.figures import (
    AudioFigures,
    DivergenceFigures,
    DriftFigures,
    Figures,
    LatencyFigures,
    TeacherForcedFigures,
    TraceFigures,
)
from precision_eval.core.formatting import command_line, grouped
from precision_eval.core.records import RECORDS_NAME, Record, RecordFile, latest
from precision_eval.results.model import (
    DRIFTS,
    ONE_INPUT,
    ONE_PROCESS,
    Estimate,
    Group,
    Row,
    exact,
    figures_of,
    row_order,
)
from precision_eval.results.sound import judged_sound, undecided

ENVIRONMENT_NAME = "environment.json"

_Key = tuple[str, str, str, str, int, str]  # case, size, mode, device, threads, pins

_WORSE_FIRST = ("crashed", "out_of_memory", "timed_out", "raised", "unsupported")
TWO_DIGITS = 0.05
"""Relative error above which fewer than two decimal digits are right; a doubt, not a limit."""

EMPTIED_CACHE = "device times are of calls that find the L2 cache emptied"

_FAULTS_NAMED = 5
_CONFIDENCE = 0.95


def groups_of(records: Iterable[Record], *, run: str = "RUN") -> tuple[Group, ...]:
    """Arrange records into groups: those that hold a fix, in the order in which they were recorded."""
    return tuple(group for group in _all_groups(records, run) if group.fixes)


def _all_groups(records: Iterable[Record], run: str) -> tuple[Group, ...]:
    by_key = grouped(
        ((record.case, record.size, record.mode, record.device, record.threads, pins_of(record)), record)
        for record in latest(records).values()
    )
    groups = [_group(key, own, run) for key, own in by_key.items()]
    return tuple(replace(_heard(group, groups), cured_elsewhere=_cured_elsewhere(group, groups)) for group in groups)


def _heard(group: Group, groups: Sequence[Group]) -> Group:
    """Add the verdicts on sound, as one family."""
    known = {row.role: row.heard for row in _comparators(group, groups, "sound")}
    rows = [row for row in group.rows if row.role != "reference"]
    heard = {row.fix: row.heard for row in rows if row.heard is not None}
    verdicts = judged_sound(heard, known.get("reference"), known.get("noise_floor"))
    verdicts |= {row.fix: undecided() for row in rows if row.fix not in heard and row.audio is not None}
    return replace(group, rows=tuple(replace(row, sound=verdicts.get(row.fix)) for row in group.rows))


def _comparators(group: Group, groups: Sequence[Group], measure: str) -> tuple[Row, ...]:
    known: dict[str, Row] = {}
    for other in (group, *(other for other in groups if group.is_like(other))):
        for row in other.rows:
            if row.role != "fix" and measure in row.records and row.records[measure].figures is not None:
                known.setdefault(row.fix, row)
    return tuple(sorted(known.values(), key=row_order))


def _cured_elsewhere(group: Group, groups: Sequence[Group]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return, per other mode, the fixes that cure the case there and were not measured here; none where one cures."""
    if group.curing:
        return ()
    own = {row.fix for row in group.fixes}
    others = [other for other in groups if other.mode != group.mode and other.is_like(group)]
    cured = ((other.mode, tuple(row.fix for row in other.curing if row.fix not in own)) for other in others)
    return tuple((mode, fixes) for mode, fixes in cured if fixes)


@dataclass(frozen=True, kw_only=True)
class Run:
    """All groups of a run, in a stable order."""

    directory: Path
    records: tuple[Record, ...] = field(repr=False)
    environment: Mapping[str, Any] = field(repr=False)
    torn_bytes: int = 0
    faults: tuple[str, ...] = ()

    @property
    def damage(self) -> tuple[str, ...]:
        """What of the records file could not be read, one line each; of many lines the first few."""
        torn = (f"The last record is torn ({self.torn_bytes} bytes) and not counted; run again to resume.",)
        alike: dict[str, list[str]] = {}  # by the reason, whatever the number of the line
        for fault in self.faults:
            alike.setdefault(re.sub(r" line \d+\b", "", fault, count=1), []).append(fault)
        lines = [
            faults[0] if len(faults) == 1 else f"{faults[0]}; the same of {len(faults) - 1} more lines"
            for faults in alike.values()
        ]
        rest = len(lines) - _FAULTS_NAMED
        more = (f"… and {rest} more lines that are no records.",) if rest > 0 else ()
        return (*(torn if self.torn_bytes else ()), *lines[:_FAULTS_NAMED], *more)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The groups in the order in which they were recorded, those without a fix included."""
        return _all_groups(self.records, str(self.directory))

    @cached_property
    def sections(self) -> tuple[Group, ...]:
        """The groups ordered by case, size (by its numbers), mode (eager first), device, pinned settings, threads."""
        return tuple(sorted(self.groups, key=_section_order))

    @property
    def busy_s(self) -> dict[str, float]:
        """Seconds in which any cell of a measure ran, to the second in which each is known to have begun."""
        spans: dict[str, list[tuple[float, float]]] = {}
        for record in self.records:
            with suppress(ValueError):  # no time, in a record from elsewhere
                began_s = datetime.fromisoformat(record.started_at).timestamp()
                spans.setdefault(record.measure, []).append((began_s, began_s + record.wall_s))
        return {measure: round(_covered_s(own), 1) for measure, own in spans.items()}

    def comparators(self, group: Group, measure: str) -> tuple[Row, ...]:
        """Reference, noise floor and control rows for `group` that have data of a measure.

        They are computed once, eagerly, so a compiled group borrows those of its case, size and device.
        """
        return _comparators(group, self.sections, measure)


def _section_order(group: Group) -> tuple[Any, ...]:
    size = [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", group.size)]  # 256 before 1024
    return (group.case, size, group.mode != "eager", group.mode, group.device, group.pins, group.threads)


def _covered_s(spans: Iterable[tuple[float, float]]) -> float:
    total, covered = 0.0, -math.inf
    for first, last in sorted(spans):
        total += max(0.0, last - max(first, covered))
        covered = max(covered, last)
    return total


def load_run(run_dir: Path) -> Run:
    path = run_dir / RECORDS_NAME
    reading = RecordFile(path).read()
    if not reading.records:
        what = "holds no record" if path.exists() else "does not exist"
        raise RecordError(f"{path} {what}; measure first: {command_line('run', '--out', run_dir)}")
    return Run(
        directory=run_dir,
        records=tuple(latest(reading.records).values()),
        environment=read_environment(run_dir),
        torn_bytes=reading.torn_bytes,
        faults=reading.faults,
    )


def read_environment(run_dir: Path) -> Mapping[str, Any]:
    """Return what a run was measured with; empty where that is not stored."""
    path = run_dir / ENVIRONMENT_NAME
    if not path.is_file():
        return {}
    try:
        return environment_of(path.read_bytes(), where=str(path))
    except (OSError, RecordError) as error:
        what = str(error).removesuffix("; repair or remove it")
        again = command_line("run", "--out", run_dir)
        raise RecordError(f"{what}; remove it, or write it again: {again}") from error


def status_of(records: Sequence[Record]) -> tuple[str, str | None]:
    """Return one status for all measures of a fix, and the reason that came with it."""
    statuses = {record.status for record in records}
    unseen = [record for record in records if record.measure == "trace" and record.status == "unsupported"]
    if unseen and "non_finite" not in statuses:
        return "unsupported", unseen[0].reason
    if "non_finite" in statuses or "passed" in statuses:
        status = "non_finite" if "non_finite" in statuses else "passed"
    else:
        status = next((status for status in _WORSE_FIRST if status in statuses), "unsupported")
    return status, next((record.reason for record in records if record.status == status and record.reason), None)


def pins_of(record: Record) -> str:
    """Return the settings that a record was measured under, as in its cell's id; empty where nothing was pinned."""
    return pins_text(*map(record.options.get, ("sdpa_backend", "tf32", "compile_mode")))


def _group(key: _Key, records: list[Record], run: str) -> Group:
    case, size, mode, device, threads, pins = key
    by_fix: dict[str, dict[str, Record]] = {}
    for record in records:
        by_fix.setdefault(record.fix, {})[record.measure] = record
    place = Group(case=case, size=size, mode=mode, device=device, threads=threads, rows=(), run=run, pins=pins)
    of_fixes = [record for record in records if record.role == "fix"]
    latencies = {fix: figures for fix, own in by_fix.items() if (figures := figures_of(own, LatencyFigures))}
    baselines = {figures.baseline for figures in latencies.values()}
    fault = _fault(place, {record.case_digest for record in of_fixes}, baselines)
    baseline = next(iter(baselines), None) if not fault else None
    twin = latencies.get(baseline or "")
    rows = [_row(fix, own, baseline, twin=twin is not None) for fix, own in by_fix.items()]
    traces = [trace for own in by_fix.values() if (trace := figures_of(own, TraceFigures))]
    notes = [note for trace in traces for note in trace.not_applicable]
    notes += [EMPTIED_CACHE] if any((figures.clock or "").endswith("-cold") for figures in latencies.values()) else []
    group = replace(
        place,
        rows=tuple(sorted(rows, key=row_order)),
        baseline=baseline,
        noise_floor=ratio_estimate(twin) if twin else None,
        noise_floor_off=twin is not None and twin.verdict in ("faster", "slower"),
        notes=tuple(dict.fromkeys(notes)),
        tolerances=next((trace.tolerances for trace in traces if trace.tolerances), {}),
        fault=fault,
    )
    return group if fault else _doubted(group, of_fixes)


def figure_doubts(group: Group) -> list[str]:
    """Say what speaks against comparing the figures of a group: its noise floor, one process, one input."""
    doubts = []
    if group.noise_floor_off and group.noise_floor is not None:
        noise_floor = group.noise_floor
        doubts.append(
            f"the noise floor is off: {group.baseline} against itself gave {noise_floor.value:.3f} "
            f"[{noise_floor.low:.3f}, {noise_floor.high:.3f}], so no time is trusted; run again"
        )
    timed = [row for row in group.curing if row.processes == 1 and row.fix != group.baseline]
    if timed:
        doubts.append(
            f"time was measured in one process, and another process may differ: differences "
            f"below {100 * ONE_PROCESS:.0f} % count as ties; run with --set processes=5 or more"
        )
    drifting = [row for row in group.curing if row.drift is not None]
    if drifting and not any(row.paired_drift for row in drifting):
        doubts.append(
            f"drift is of one seeded input: differences below {100 * ONE_INPUT:.0f} % count as ties; run with "
            "--set seeds=4 or more"
        )
    return doubts


def _doubted(group: Group, records: Sequence[Record]) -> Group:
    """Add what speaks against the group as a whole."""
    doubts = figure_doubts(group)
    by_measure: dict[str, set[str]] = {}
    for record in records:
        if record.status == "passed" and record.measure in ("latency", "memory", *DRIFTS):
            by_measure.setdefault(record.measure, set()).add(record.environment)
    mixed = sorted(measure for measure, environments in by_measure.items() if len(environments) > 1)
    if mixed:
        doubts.append(f"{', '.join(mixed)} of the fixes compared here was recorded under unlike environments")
    elif len(set().union(*by_measure.values())) > 1:
        doubts.append("time, drift and memory were not all recorded under the same environment")
    return replace(group, doubts=tuple(doubts))


def _row(fix: str, records: Mapping[str, Record], baseline: str | None, *, twin: bool) -> Row:
    """Read a fix; `twin` says that the group has the baseline against itself, and so judges it for all."""
    status, reason = status_of(list(records.values()))
    role = next(iter(records.values())).role
    if status != "passed":
        return Row(fix=fix, role=role, status=status, reason=reason, records=records)
    row = Row(fix=fix, role=role, reason=reason, records=records)
    latency, drift, memory, divergence = row.latency, row.errors, row.memory, row.divergence
    return replace(
        row,
        time=None if latency is None else exact(1.0) if fix == baseline else ratio_estimate(latency),
        time_logs=() if latency is None or fix == baseline else log_ratios(latency),
        processes=0 if latency is None else max(1, len(latency.process_ratios)),
        session="" if latency is None else _session(records["latency"], latency),
        verdict=None if latency is None else latency.verdict,
        median_s=None if latency is None else latency.median_s,
        drift=None if drift is None else drift_estimate(drift),
        paired_drift=drift is not None and drift.relative_error_low is not None,
        stored_bytes=None if memory is None else memory.storage_bytes,
        peak_bytes=None if memory is None else memory.allocated_peak_bytes,
        diverged=None if divergence is None else divergence.diverged,
        streams=None if divergence is None else divergence.streams,
        survival=None if divergence is None else _survival(divergence),
        missing=_missing(records, {"time": latency, "drift": drift, "memory": memory}),
        doubts=row_doubts(fix, baseline, latency, drift, row.audio, twin=twin),
    )


def row_doubts(
    fix: str,
    baseline: str | None,
    latency: LatencyFigures | None,
    drift: DriftFigures | None,
    audio: AudioFigures | None,
    *,
    twin: bool,
) -> tuple[str, ...]:
    """Say what speaks against the figures of one row."""
    doubts = []
    if latency is not None:
        doubts += [f"time: {text}" for text in latency.doubts if not (twin and "noise floor is off" in text)]
        if fix != baseline and latency.verdict == "undecided":
            effect = latency.minimum_detectable_effect
            would = "" if effect is None else f"; this measurement would see {100 * effect:.2g} %"
            doubts.append(f"time: undecided against {baseline}{would}")
    if drift is not None:
        doubts += [f"drift: {text}" for text in drift.doubts]
        error = drift.relative_error
        if error > TWO_DIGITS:
            doubts.append(
                f"drift: {error:.2g} leaves fewer than two decimal digits of the result right; limit the drift"
            )
        if drift.assessment is not None and drift.assessment.verdict == "worse":
            doubts.append(f"drift: worse than its format makes an error: {'; '.join(drift.assessment.reasons)}")
    floored = None if audio is None else audio.against_reference.floored_fraction.get("estimate")
    if floored is not None and floored > 0.01:
        doubts.append(f"sound: {100 * floored:.0f} % of the spectrum lies below the floor of the metric")
    return tuple(doubts)


def _missing(records: Mapping[str, Record], data: Mapping[str, Figures | None]) -> dict[str, str]:
    """Say for each axis without a figure why: its measure's status and reason, or that it was not measured."""
    reasons = {}
    for axis, figures in data.items():
        if figures is not None:
            continue
        names = DRIFTS if axis == "drift" else ("latency" if axis == "time" else axis,)
        record = next((records[name] for name in names if name in records), None)
        reason = "" if record is None or not record.reason else f": {' '.join(record.reason.split())[:160]}"
        reasons[axis] = "not measured" if record is None else f"{record.measure} {record.status}{reason}"
    return reasons


def ratio_estimate(latency: LatencyFigures) -> Estimate:
    """Return a ratio of times with its interval."""
    degrees = (len(latency.unit_ratios) or latency.blocks) - 1
    return Estimate(
        value=latency.ratio,
        low=latency.ratio if latency.ratio_low is None else latency.ratio_low,
        high=latency.ratio if latency.ratio_high is None else latency.ratio_high,
        confidence=latency.confidence or _CONFIDENCE,
        degrees=float(max(degrees, 1)),
    )


def log_ratios(latency: LatencyFigures) -> tuple[float, ...]:
    """Return the log-ratios of a latency: one per process or placement, or per round where neither was drawn anew."""
    if latency.unit_ratios:
        return tuple(math.log(ratio) for ratio in latency.unit_ratios)
    pairs = zip(latency.block_median_s, latency.baseline_block_median_s, strict=True)
    return tuple(math.log(candidate / base) for candidate, base in pairs)


def _session(record: Record, latency: LatencyFigures) -> str:
    """Name the rounds that a ratio comes from; graphs and what could not be captured have rounds of their own."""
    return f"{record.started_at} {record.environment} {sorted(record.options.items())} {latency.timed_by}"


def drift_estimate(drift: DriftFigures) -> Estimate:
    """Return a relative error with its interval; of one input with its band by convention."""
    value, low, high = drift.relative_error, drift.relative_error_low, drift.relative_error_high
    if low is None or high is None:
        return Estimate(value=value, low=value * (1 - ONE_INPUT / 2), high=value * (1 + ONE_INPUT / 2))
    streams = drift.streams if isinstance(drift, TeacherForcedFigures) else None
    degrees = (streams or drift.seeds or 2) - 1
    return Estimate(value=value, low=low, high=high, confidence=_CONFIDENCE, degrees=float(max(degrees, 1)))


def _survival(divergence: DivergenceFigures) -> Estimate | None:
    curve = divergence.survival
    if curve is None or not curve.fraction:
        return None
    return Estimate(value=curve.fraction[-1], low=curve.low[-1], high=curve.high[-1])


def _fault(place: Group, digests: set[str], baselines: set[str]) -> str:
    """Say why records are not compared with one another, and what resolves it; empty where they are."""
    remedies = (
        ("case digests", digests, f"measure again what is old: {place.command()}"),
        ("baselines", baselines, f"measure it anew: {replace(place, run='NEW').command()}"),
    )
    for what, found, remedy in remedies:
        if len(found) > 1:
            unlike = ", ".join(sorted(one[:16] for one in found))
            return f"{place.title} holds unlike {what} ({unlike}), which are not compared; {remedy}"
    return ""
