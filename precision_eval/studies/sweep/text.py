"""``crossover.json`` and ``summary.md`` of a sweep.

Conventions: everything is made from the lines on file. Ratios have three significant digits and their 95 % interval;
page faults are the median over processes, with the range where they differ.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from statistics import median
from typing import Any

from precision_eval.core.formatting import MISSING, duration_text, join
from precision_eval.stats import PairedRatio
from precision_eval.stats.crossover import Crossover
from precision_eval.studies.sweep.findings import Finding, faster, sentence, slots
from precision_eval.studies.sweep.lines import CASTS, NOISE_FLOOR, LengthPoint
from precision_eval.studies.sweep.plan import BASELINE, REVISION, TO_HALF, TO_QUERY

_KEPT = ("ratio", "ratio_low", "ratio_high", "verdict", "minimum_detectable_effect", "median_s", "baseline_median_s",
         "blocks", "clock", "preempted_fraction", "process_ratios", "doubts")  # fmt: skip


_STATES = (
    "Memory: *grown* (where nothing else is said) is glibc's own rule in a process that has loaded a model and has no "
    "room of 32 MiB free: blocks below that are used again, larger ones are taken from the system at every call; "
    "*kept*: all freed memory is used again; *returned*: none of 128 KiB or more is; *untouched*: as the lengths "
    "measured before have left it."
)


def crossover_json(findings: Sequence[Finding], *, campaign: str) -> str:
    """Return every configuration's outcome and points as strict JSON."""
    configurations = [
        {
            "id": finding.series.configuration.id,
            **asdict(finding.series.configuration),
            "says": sentence(finding.crossover),
            "crossover": None if finding.crossover is None else _crossover_data(finding.crossover),
            "points": [_point_data(point) for point in finding.series.points],
        }
        for finding in findings
    ]
    head = {"ratio": f"{TO_QUERY} / {TO_HALF}", "campaign": campaign, "revision": REVISION}
    data = head | {"configurations": configurations}
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _crossover_data(crossover: Crossover) -> dict[str, Any]:
    """Plain data; a crossing in a jump has no place on a straight line."""
    data = asdict(crossover)
    for crossing in data["crossings"]:
        if crossing["jump"] is not None:
            crossing |= {"length": None, "low": None, "high": None}
    return data


def _point_data(point: LengthPoint) -> dict[str, Any]:
    ratios = {name: {key: ratio.to_dict()[key] for key in _KEPT} for name, ratio in point.ratios.items()}
    faults = {fix: list(values) for fix, values in point.page_faults.items()}
    return {
        "length": point.length,
        "processes": point.processes,
        "ratios": ratios,
        "page_faults_per_call": faults,
        "failures": dict(point.failures),
    }


def summary_markdown(findings: Sequence[Finding], *, campaign: str) -> str:
    """Return the summary."""
    batch = join(sorted({str(one.series.configuration.batch) for one in findings}))
    parts = [
        "# The two casts at decode, by length of the cache",
        f"One query per head, all slots in use, batch {batch}; `{TO_HALF}` runs attention in the cache's dtype, "
        f"`{TO_QUERY}` casts keys and values to float32 at every step. Ratios of latency with 95 % intervals, over "
        f"several processes; above 1 takes longer. Environment, revision, budget, processes and seed: `{campaign}`.",
        "![ratios by length](lengths.png)",
        "## Where the order turns",
        _table(("configuration", "crossover"), [(_title(one), sentence(one.crossover)) for one in findings]),
        f"Every ratio is over {_processes(findings)}. A crossing's place is read off a straight line over the "
        "logarithm of the length, and so is its interval; where page faults jump, the ratio does, and only the two "
        "lengths around the crossing are given. Crossings that come in pairs between neighbouring lengths are not "
        "seen. " + _STATES,
        "## Which cast is faster",
        "\n".join(f"- {line}" for line in answer(findings)),
        f"## `{TO_QUERY}` ÷ `{TO_HALF}`",
        _by_length(findings, lambda point: _ratio(point.ratios.get(CASTS))),
        f"## `{TO_HALF}` ÷ `{BASELINE}`",
        _by_length(findings, lambda point: _ratio(point.ratios.get(TO_HALF))),
        f"## `{TO_QUERY}` ÷ `{BASELINE}`",
        _by_length(findings, lambda point: _ratio(point.ratios.get(TO_QUERY))),
        f"## A copy of `{BASELINE}` ÷ `{BASELINE}`",
        "The noise floor. The copy has tensors of its own, as every candidate has: the baseline run twice "
        "would find its "
        "cache in the processor's the second time, and all others would seem slower than they are.",
        _by_length(findings, lambda point: _ratio(point.ratios.get(NOISE_FLOOR))),
        f"## Median latency of `{TO_HALF}` and `{TO_QUERY}`",
        _by_length(findings, lambda point: _medians(point.ratios.get(CASTS))),
        f"## Page faults per call of `{TO_QUERY}`",
        "Each is a 4 KiB page (where the system has no larger ones) that had to be cleared for the copy of the cache; "
        "0 says that its memory was used again.",
        _by_length(findings, lambda point: _faults(point.page_faults.get(TO_QUERY, ()))),
    ]
    for heading, found in (("Not measured", _failures(findings)), ("Doubts", _doubts(findings))):
        if found:
            parts += [f"## {heading}", "\n".join(f"- {line}" for line in found)]
    return "\n\n".join(parts) + "\n"


def answer(findings: Sequence[Finding]) -> list[str]:
    """Say which cast is faster at the longest length, and what the order depends on."""
    longest = max(point.length for one in findings for point in one.series.points)
    lines = []
    for group in _grouped(findings, lambda one: (one.series.configuration.shape, one.series.configuration.cache_dtype)):
        lines += _at_longest(group, longest)
    turned = _turned_by_memory(findings)
    if turned:
        lines.append(
            f"The state of memory alone turns the order: {'; '.join(turned)}. Two readings of the same casts at the "
            "same length that disagree can both be right."
        )
    elif len({one.series.configuration.memory for one in findings}) > 1:
        lines.append("No length was found at which the state of memory alone turns the order.")
    return [*lines, *_noise_floor(findings)]


def _noise_floor(findings: Sequence[Finding]) -> list[str]:
    """One sentence on how far equal copies of the baseline came out apart, none where there is no noise floor."""
    found = [
        (abs(math.log(ratio.ratio)), f"{_title(one)}, {slots(point.length)} slots", ratio)
        for one in findings
        for point in one.series.points
        if (ratio := point.ratios.get(NOISE_FLOOR)) is not None
    ]
    if not found:
        return []
    ratios = sorted(ratio.ratio for _, _, ratio in found)
    off = sum(ratio.verdict in ("slower", "faster") for _, _, ratio in found)
    _, where, worst = max(found, key=lambda one: one[0])
    return [
        f"Null: a copy of `{BASELINE}` with tensors of its own takes {median(ratios):.3g} × its time in the middle of "
        f"{len(found)} points and {_ratio(worst)} at the farthest ({where}); {off} of them are called slower or faster."
    ]


def _processes(findings: Sequence[Finding]) -> str:
    """Say over how many processes: ``6 processes``, ``3 to 6 processes``."""
    counts = sorted({point.processes for one in findings for point in one.series.points if point.processes})
    if not counts:
        return "no process"
    span = f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
    return f"{span} process{'es' if counts[-1] > 1 else ''}"


def _at_longest(group: Sequence[Finding], longest: int) -> list[str]:
    """One sentence per state of memory of one shape and dtype."""
    shape = f"{group[0].series.configuration.shape} {group[0].series.configuration.cache_dtype}"
    lines = []
    for state in _grouped(group, lambda one: one.series.configuration.memory):
        found = [ratio for one in state if (ratio := _casts_at(one, longest)) is not None]
        if not found:
            continue
        low, high = min(ratio.ratio for ratio in found), max(ratio.ratio for ratio in found)
        span = f"{low:.3g}" if len(found) == 1 else f"{low:.3g} to {high:.3g}"
        verdicts = {word: sum(ratio.verdict == word for ratio in found) for word in _VERDICTS}
        said = join([f"{word} in {count}" for word, count in verdicts.items() if count])
        faults = [value for one in state for value in _faults_at(one, longest)]
        lines.append(
            f"{shape} at {slots(longest)} slots, memory {state[0].series.configuration.memory}: `{TO_QUERY}` takes "
            f"{span} × the time of `{TO_HALF}`; {said} of {len(found)} "
            f"configuration{'s' if len(found) > 1 else ''}, with {_faults(faults)} page faults per call of the former."
        )
    return lines


_VERDICTS = ("slower", "faster", "equivalent", "undecided")


def _turned_by_memory(findings: Sequence[Finding]) -> list[str]:
    """List where two states of memory give opposite verdicts at the same length, all else equal."""
    found = []

    def but_memory(one: Finding) -> tuple[object, ...]:
        where = one.series.configuration
        return where.shape, where.cache_dtype, where.batch, where.mode, where.threads

    for group in _grouped(findings, but_memory):
        lengths: dict[tuple[str, str], list[str]] = {}
        for length in sorted({point.length for one in group for point in one.series.points}):
            words = {one.series.configuration.memory: _casts_at(one, length) for one in group}
            sides = {state: ratio.verdict for state, ratio in words.items() if ratio is not None}
            slower = [state for state, verdict in sides.items() if verdict == "slower"]
            quicker = [state for state, verdict in sides.items() if verdict == "faster"]
            if slower and quicker:
                lengths.setdefault((join(slower), join(quicker)), []).append(slots(length))
        title = replace(group[0].series.configuration, memory="grown").title
        for (slow, quick), at in lengths.items():
            found.append(
                f"{title}, at {join(at)} slots: `{faster(1)}` is faster with memory {slow}, `{faster(-1)}` with {quick}"
            )
    return found


def _casts_at(finding: Finding, length: int) -> PairedRatio | None:
    return next((point.ratios.get(CASTS) for point in finding.series.points if point.length == length), None)


def _faults_at(finding: Finding, length: int) -> Sequence[float]:
    return next((p.page_faults.get(TO_QUERY, ()) for p in finding.series.points if p.length == length), ())


def _grouped(findings: Sequence[Finding], key: Callable[[Finding], object]) -> list[list[Finding]]:
    groups: dict[object, list[Finding]] = {}
    for one in findings:
        groups.setdefault(key(one), []).append(one)
    return list(groups.values())


def _title(finding: Finding) -> str:
    return finding.series.configuration.title


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _by_length(findings: Sequence[Finding], cell: Callable[[LengthPoint], str]) -> str:
    """A row per configuration, a column per length."""
    lengths = sorted({point.length for one in findings for point in one.series.points})
    rows = []
    for one in findings:
        cells = {point.length: cell(point) for point in one.series.points}
        rows.append([_title(one), *(cells.get(length, MISSING) for length in lengths)])
    return _table(["configuration", *map(slots, lengths)], rows)


def _ratio(ratio: PairedRatio | None) -> str:
    if ratio is None:
        return MISSING
    return f"{ratio.ratio:.3g} [{ratio.ratio_low:.3g}, {ratio.ratio_high:.3g}]"


def _medians(ratio: PairedRatio | None) -> str:
    if ratio is None:
        return MISSING
    return f"{duration_text(ratio.baseline_median_s)}, {duration_text(ratio.median_s)}"


def _faults(values: Sequence[float]) -> str:
    if not values:
        return MISSING
    low, high = round(min(values)), round(max(values))
    middle = f"{round(median(values)):,}"
    return middle if low == high else f"{middle} ({low:,} to {high:,})"


def _failures(findings: Sequence[Finding]) -> list[str]:
    """One line per configuration, fix and reason, with its lengths."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for one in findings:
        for point in one.series.points:
            for fix, why in point.failures.items():
                found.setdefault((_title(one), fix, why), []).append(point.length)
    return [f"{title}, `{fix}` at {', '.join(map(slots, at))}: {why}" for (title, fix, why), at in found.items()]


def _doubts(findings: Sequence[Finding]) -> list[str]:
    """Each kind of doubt about the ratio of the two casts, with how many points raise it and where first."""
    found: dict[str, list[str]] = {}
    points = 0
    for one in findings:
        for point in one.series.points:
            ratio = point.ratios.get(CASTS)
            points += ratio is not None
            for doubt in ratio.doubts if ratio else ():
                kind = doubt.split(" processes: ")[-1].split(":")[0].split(",")[0]
                found.setdefault(kind, []).append(f"{_title(one)}, {slots(point.length)}: {doubt}")
    return [f"{kind}: {len(where)} of {points} points; first {where[0]}" for kind, where in found.items()]
