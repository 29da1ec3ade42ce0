"""Groups from records: what each fix measured, with its interval, its statuses and its doubts.

Conventions: the last record of a cell counts. Records of unlike case digests, or of unlike baselines, are not
compared: their group has no rows, and says why. Figures of unlike environments are a doubt. The interval around the
ratio of two distances of sound comes from resampling stretches of the two recordings together; it says how steady the
ratio is over the recording, not how another recording would differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from precision_eval.core.cells import pins_text
from precision_eval.core.records import Record, latest
from precision_eval.fixes.catalog import FIXES
from precision_eval.results.choose.facts import ONE_INPUT, ONE_PROCESS, Contender, Estimate, Group, exact

_Key = tuple[str, str, str, str, int, str]  # case, size, mode, device, threads, pins

_WORSE_FIRST = ("crashed", "out_of_memory", "timed_out", "raised", "unsupported")
_DRIFTS = ("teacher_forced_drift", "drift")
_DISTANCE = "mel_mcd_db"
TWO_DIGITS = 0.05
"""Relative error above which fewer than two decimal digits are right; a doubt, not a limit."""

_SOUND_RESAMPLES = 1000
_CONFIDENCE = 0.95


def groups_of(records: Iterable[Record], *, run: str = "RUN") -> tuple[Group, ...]:
    """Arrange records into groups."""
    found: dict[_Key, list[Record]] = {}
    noise_floors: dict[tuple[str, str, str, str], Record] = {}
    for record in latest(records).values():
        if record.role == "fix":
            key = (record.case, record.size, record.mode, record.device, record.threads, _pins(record))
            found.setdefault(key, []).append(record)
        elif record.role == "noise_floor" and record.measure == "audio":
            noise_floors[record.case, record.size, record.device, _pins(record)] = record
    return tuple(
        _group(key, group, noise_floors.get((key[0], key[1], key[3], key[5])), run) for key, group in found.items()
    )


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


def sound_ratio(fix: Mapping[str, Any], noise_floor: Mapping[str, Any]) -> Estimate | None:
    """Return the distance to the reference's audio as a ratio to the noise floor's, with an interval over
    the recording.
    """
    values, chance = (_series(data) for data in (fix, noise_floor))
    recorded = _at(fix, "against_reference", _DISTANCE, "ratio_to_null")
    if values is None or chance is None or values.shape != chance.shape or values.size < 4 or chance.mean() <= 0.0:
        return None if recorded is None else exact(recorded)
    n = values.size
    length = max(1, round(math.sqrt(n)))
    draws = -(-n // length)
    starts = np.random.default_rng(0).integers(n, size=(_SOUND_RESAMPLES, draws))  # (resamples, stretches)
    sums = [np.concatenate([[0.0], np.cumsum(np.tile(series, 2))]) for series in (values, chance)]
    top, bottom = (np.sum(one[starts + length] - one[starts], axis=1) for one in sums)
    low, high = np.quantile(top / bottom, [0.025, 0.975])
    ratio = float(values.mean() / chance.mean()) if recorded is None else recorded
    return Estimate(value=ratio, low=min(float(low), ratio), high=max(float(high), ratio), confidence=_CONFIDENCE)


def _pins(record: Record) -> str:
    """Return what was pinned, as in the cell's id."""
    return pins_text(record.options.get("sdpa_backend"), record.options.get("tf32"))


def _group(key: _Key, records: list[Record], noise_floor: Record | None, run: str) -> Group:
    case, size, mode, device, threads, pins = key
    by_fix: dict[str, dict[str, Record]] = {}
    for record in records:
        by_fix.setdefault(record.fix, {})[record.measure] = record
    place = Group(case=case, size=size, mode=mode, device=device, threads=threads, rows=(), run=run, pins=pins)
    latencies = [data for found in by_fix.values() if (data := _data(found, "latency"))]
    baselines = {str(data["baseline"]) for data in latencies}
    fault = _fault(place, {record.case_digest for record in records}, baselines)
    if fault:
        return replace(place, fault=fault)
    baseline = next(iter(baselines), None)
    twin = _data(by_fix.get(baseline or "", {}), "latency")
    noise_floor_data = noise_floor.data if noise_floor is not None and noise_floor.status == "passed" else None
    rows = [_contender(fix, found, baseline, noise_floor_data, twin=twin is not None) for fix, found in by_fix.items()]
    group = replace(
        place,
        rows=tuple(sorted(rows, key=lambda row: order_of(row.fix))),
        baseline=baseline,
        noise_floor=_ratio(twin) if twin else None,
        noise_floor_off=twin is not None and _verdict(twin) in ("faster", "slower"),
    )
    return _doubted(group, records)


def order_of(fix: str) -> tuple[int, str]:
    """Return the place of a fix in ``FIXES``; ids that are not there come last, by name."""
    ids = [one.id for one in FIXES]
    return (ids.index(fix) if fix in ids else len(ids), fix)


def _doubted(group: Group, records: Sequence[Record]) -> Group:
    """Add what speaks against the group as a whole."""
    doubts = []
    if group.noise_floor_off and group.noise_floor is not None:
        noise_floor = group.noise_floor
        doubts.append(
            f"the noise floor is off: {group.baseline} against itself gave {noise_floor.value:.3f} "
            f"[{noise_floor.low:.3f}, {noise_floor.high:.3f}]; "
            f"differences in time below {100 * math.expm1(group.time_reach):.1f} % are not called"
        )
    timed = [row for row in group.contenders if row.processes == 1 and row.fix != group.baseline]
    if timed:
        doubts.append(
            f"time was measured in one process, which draws its memory layout once: differences below "
            f"{100 * ONE_PROCESS:.0f} % are not called; run with --processes 5 or more"
        )
    drifting = [row for row in group.contenders if row.drift is not None]
    if drifting and not any(row.paired_drift for row in drifting):
        doubts.append(f"drift is of one seeded input: differences below {100 * ONE_INPUT:.0f} % are not told apart")
    by_measure: dict[str, set[str]] = {}
    for record in records:
        if record.status == "passed" and record.measure in ("latency", "memory", *_DRIFTS):
            by_measure.setdefault(record.measure, set()).add(record.environment)
    mixed = sorted(measure for measure, found in by_measure.items() if len(found) > 1)
    if mixed:
        doubts.append(f"{', '.join(mixed)} of the fixes compared here was recorded under unlike environments")
    elif len(set().union(*by_measure.values())) > 1:
        doubts.append("time, drift and memory were not all recorded under the same environment")
    return replace(group, doubts=tuple(doubts))


def _contender(
    fix: str, records: Mapping[str, Record], baseline: str | None, noise_floor: Mapping[str, Any] | None, *, twin: bool
) -> Contender:
    """Read a fix; `twin` says that the group has the baseline against itself, and so judges it for all."""
    status, reason = status_of(list(records.values()))
    if status != "passed":
        return Contender(fix=fix, status=status, reason=reason)
    latency, memory = _data(records, "latency"), _data(records, "memory")
    drift = next((data for name in _DRIFTS if (data := _data(records, name))), None)
    divergence, audio = _data(records, "divergence"), _data(records, "audio")
    estimate = _drift(drift)
    return Contender(
        fix=fix,
        time=None if latency is None else exact(1.0) if fix == baseline else _ratio(latency),
        time_logs=() if latency is None or fix == baseline else _logs(latency),
        processes=0 if latency is None else max(1, len(latency.get("process_ratios", ()))),
        session=_session(records.get("latency")),
        verdict=None if latency is None else _verdict(latency),
        median_s=_at(latency, "median_s"),
        drift=estimate,
        paired_drift=estimate is not None and _at(drift, "relative_error_low") is not None,
        stored_bytes=_whole(_at(memory, "storage_bytes")),
        peak_bytes=_whole(_at(memory, "allocated_peak_bytes")),
        diverged=_whole(_at(divergence, "diverged")),
        streams=_whole(_at(divergence, "streams")),
        survival=_survival(divergence),
        sound=None if audio is None else sound_ratio(audio, noise_floor or {}),
        missing=_missing(records, {"time": latency, "drift": drift, "memory": memory}),
        doubts=_contender_doubts(fix, baseline, latency, drift, audio, twin=twin),
    )


def _contender_doubts(
    fix: str,
    baseline: str | None,
    latency: Mapping[str, Any] | None,
    drift: Mapping[str, Any] | None,
    audio: Mapping[str, Any] | None,
    *,
    twin: bool,
) -> tuple[str, ...]:
    found = [
        f"time: {doubt}" for doubt in (latency or {}).get("doubts", ()) if not (twin and "noise floor is off" in doubt)
    ]
    if latency is not None and fix != baseline and _verdict(latency) == "undecided":
        effect = _at(latency, "minimum_detectable_effect")
        would = "" if effect is None else f"; this measurement would see {100 * effect:.2g} %"
        found.append(f"time: undecided against {baseline}{would}")
    found += [f"drift: {doubt}" for doubt in (drift or {}).get("doubts", ())]
    error = _at(drift, "relative_error")
    if error is not None and error > TWO_DIGITS:
        found.append(f"drift: {error:.2g} leaves fewer than two decimal digits of the result right; limit the drift")
    judged = (drift or {}).get("assessment")
    if isinstance(judged, Mapping) and judged.get("verdict") == "worse":
        found.append(f"drift: worse than its format makes an error: {'; '.join(judged.get('reasons', ()))}")
    floored = _at(audio, "against_reference", "floored_fraction", "estimate")
    if floored is not None and floored > 0.01:
        found.append(f"sound: {100 * floored:.0f} % of the spectrum lies below the floor of the metric")
    return tuple(found)


def _missing(records: Mapping[str, Record], data: Mapping[str, Mapping[str, Any] | None]) -> dict[str, str]:
    """Say for each axis without a figure why: its measure's status and reason, or that it was not measured."""
    found = {}
    for axis, figures in data.items():
        if figures is not None:
            continue
        names = _DRIFTS if axis == "drift" else ("latency" if axis == "time" else axis,)
        record = next((records[name] for name in names if name in records), None)
        reason = "" if record is None or not record.reason else f": {' '.join(record.reason.split())[:160]}"
        found[axis] = "not measured" if record is None else f"{record.measure} {record.status}{reason}"
    return found


def _ratio(data: Mapping[str, Any]) -> Estimate:
    value = float(data["ratio"])
    low, high = (_at(data, name) for name in ("ratio_low", "ratio_high"))
    processes = len(data.get("process_ratios", ()))
    degrees = (processes if processes > 1 else int(data.get("blocks", 2))) - 1
    return Estimate(
        value=value,
        low=value if low is None else low,
        high=value if high is None else high,
        confidence=float(data.get("confidence", _CONFIDENCE)),
        degrees=float(max(degrees, 1)),
    )


def _logs(data: Mapping[str, Any]) -> tuple[float, ...]:
    if len(data.get("process_ratios", ())) > 1:
        return tuple(math.log(ratio) for ratio in data["process_ratios"])
    pairs = zip(data.get("block_median_s", ()), data.get("baseline_block_median_s", ()), strict=True)
    return tuple(math.log(candidate / base) for candidate, base in pairs)


def _session(record: Record | None) -> str:
    return "" if record is None else f"{record.started_at} {record.environment} {sorted(record.options.items())}"


def _verdict(data: Mapping[str, Any]) -> str:
    verdict = str(data.get("verdict"))
    return {"better": "faster", "worse": "slower"}.get(verdict, verdict)  # as version 0.1 had them


def _drift(data: Mapping[str, Any] | None) -> Estimate | None:
    value, low, high = (_at(data, f"relative_error{end}") for end in ("", "_low", "_high"))
    if value is None:
        return None
    if low is None or high is None:
        return Estimate(value=value, low=value * (1 - ONE_INPUT / 2), high=value * (1 + ONE_INPUT / 2))
    streams = _at(data, "streams") or 2.0
    return Estimate(value=value, low=low, high=high, confidence=_CONFIDENCE, degrees=max(streams - 1.0, 1.0))


def _survival(data: Mapping[str, Any] | None) -> Estimate | None:
    curve = (data or {}).get("survival") or {}
    ends = [curve[name][-1] for name in ("fraction", "low", "high") if curve.get(name)]
    return Estimate(value=ends[0], low=ends[1], high=ends[2]) if len(ends) == 3 else None


def _series(data: Mapping[str, Any]) -> np.ndarray | None:
    node = (data.get("against_reference") or {}).get(_DISTANCE) or {}
    values = (node.get("series") or {}).get("value")
    if not values or any(value is None for value in values):
        return None
    return np.asarray(values, dtype=np.float64)


def _data(records: Mapping[str, Record], measure: str) -> dict[str, Any] | None:
    record = records.get(measure)
    return record.data if record is not None and record.status == "passed" and record.data else None


def _at(data: object, *path: str) -> float | None:
    for name in path:
        data = data.get(name) if isinstance(data, Mapping) else None
    if isinstance(data, bool) or not isinstance(data, int | float) or not math.isfinite(data):
        return None
    return float(data)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _fault(place: Group, digests: set[str], baselines: set[str]) -> str:
    """Say why records are not compared with one another, and what mends it; empty where they are."""
    remedies = (
        ("case digests", digests, f"measure again what is old: {place.command()}"),
        ("baselines", baselines, f"measure it anew: {replace(place, run='NEW').command()}"),
    )
    for what, found, remedy in remedies:
        if len(found) > 1:
            unlike = ", ".join(sorted(one[:16] for one in found))
            return f"{place.title} holds unlike {what} ({unlike}), which are not compared; {remedy}"
    return ""
