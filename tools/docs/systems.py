"""A run's table of one system, and what depends on the torch version there, as Markdown."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from precision_eval.core.errors import ParameterError
from precision_eval.core.formatting import MISSING, fixed, join, memory_text, scientific, with_interval
from precision_eval.core.records import Record
from precision_eval.core.table import Code, MarkdownText, Table, to_markdown
from precision_eval.explain.messages import short_reason
from precision_eval.report.tables import confidence_text, shares_of
from precision_eval.report.text import environment_markdown
from precision_eval.results.model import Group, Row, figure_of, memory_bytes
from precision_eval.results.reading import Run

ENVIRONMENT = "environment"

FEWEST_POSITIONS = 20
"""Fewer positions make no share."""

_NUMBER = re.compile(r"(?<![\w.])[-−]?\d+(?:\.\d+)?")
_SLOT = "\x00"
_LONGEST_DOUBT = 200


def system_markdown(run: Run, name: str, cases: Collection[str]) -> str:
    """Return the block of a system's page: a case or ``environment``."""
    if name == ENVIRONMENT:
        return environment_markdown(run, cases or None)
    return to_markdown(system_table(run, name), heading=True)


def system_table(run: Run, case: str) -> Table:
    """Return one row per fix of a case, eager and compiled side by side."""
    sections = {section.mode: section for section in run.sections if (section.case, section.pins) == (case, "")}
    if not sections:
        held = ", ".join(sorted({section.case for section in run.sections}))
        raise ParameterError(f"{run.directory} holds nothing of the case '{case}'; it holds {held}")
    rows = {mode: {row.fix: row for row in section.fixes} for mode, section in sections.items()}
    fixes = list(dict.fromkeys(fix for found in rows.values() for fix in found))
    ordered = tuple(sections.values())
    first = ordered[0]
    columns = ["fix", *sections, "drift", "cast / compute / rounding / cross, %"]
    columns += [f"latency, {mode} {confidence_text(section)}".strip() for mode, section in sections.items()]
    columns.append("storage + peak extra")
    if any(sampler_text(row) != MISSING for found in rows.values() for row in found.values()):
        columns.append("nucleus moved by the sampler alone")
    return Table(
        title=f"{case} · {first.size} · {first.device}, {first.threads} thread{'' if first.threads == 1 else 's'}",
        columns=tuple(columns),
        rows=tuple(_cells(fix, [found.get(fix) for found in rows.values()])[: len(columns)] for fix in fixes),
        kinds=("passed",) * len(fixes),
        notes=tuple(map(MarkdownText, (*_messages(ordered), *latency_notes(ordered), *doubt_notes(ordered)))),
    )


def _cells(fix: str, rows: Sequence[Row | None]) -> tuple[str, ...]:
    """One line: statuses, then the figures of the first mode that has them, latency per mode."""
    present = [row for row in rows if row is not None]
    drift = next((row.drift_data for row in present if row.drift_data), None)
    memory = next((found for row in present if (found := memory_bytes(row)) is not None), None)
    return (
        Code(fix),
        *(MISSING if row is None else row.status for row in rows),
        scientific(figure_of(drift, "relative_error")),
        shares_text(drift),
        *(MISSING if row is None else _latency(row) for row in rows),
        MISSING if memory is None else f"{memory_text(memory[0])} + {memory_text(memory[1])}",
        next((text for row in present if (text := sampler_text(row)) != MISSING), MISSING),
    )


def _latency(row: Row) -> str:
    data = row.data("latency")
    names = ("ratio", "ratio_low", "ratio_high")
    text = with_interval(*(fixed(figure_of(data, name), decimals=2) for name in names))
    return f"A/A {text}" if data is not None and data.get("baseline") == row.fix else text


def _messages(sections: Iterable[Group]) -> list[str]:
    """One line per distinct message, with the fixes and modes that ended in it."""
    shared: dict[tuple[str, str], list[str]] = {}
    for section in sections:
        for row in section.failing:
            shared.setdefault((row.status, short_reason(row.reason)), []).append(f"{row.fix} ({section.mode})")
    return [f"{', '.join(who)}: {status}: {reason}" for (status, reason), who in shared.items()]


def shares_text(drift: Mapping[str, Any] | None) -> str:
    """Write the parts in one cell: ``60 / 25 / 10 / 5``."""
    shares = shares_of(drift)
    return MISSING if shares is None else " / ".join(fixed(share, decimals=0) for share in shares)


def sampler_text(row: Row) -> str:
    """Share of positions whose nucleus the sampler's own rounding changes; a single position makes no share."""
    data = row.data("sampler")
    positions, changed = figure_of(data, "positions"), figure_of(data, "changed_nucleus")
    if positions is None or changed is None or positions < FEWEST_POSITIONS:
        return MISSING
    return f"{100.0 * changed:.0f} % of {positions:.0f}"


def latency_notes(sections: Sequence[Group]) -> list[str]:
    """Return how the latencies of a table were measured, one line per mode."""
    notes = []
    for section in sections:
        ways = {_way(row.records["latency"]) for row in section.rows if row.data("latency")}
        known = sorted(way for way in ways if way)
        if known:
            notes.append(f"Latency, {section.mode}: {' or '.join(known)}.")
    return notes


def _way(record: Record) -> str:
    processes, budget_s = record.options.get("processes"), record.options.get("budget_s")
    if not isinstance(processes, int) or not isinstance(budget_s, int | float):
        return ""
    if processes == 1:
        return f"1 process, {budget_s:g} s for all fixes together, its intervals without what differs between processes"
    return f"{processes} processes, {budget_s:g} s for all fixes and processes together"


def doubt_notes(sections: Sequence[Group]) -> list[str]:
    """Return the doubts that a table's records carry, alike ones in one line with the range of their numbers."""
    notes = []
    for section in sections:
        shared: dict[tuple[str, str], list[tuple[str, list[str]]]] = {}
        for row in section.rows:
            for measure, doubt in _doubts(row):
                kind = (measure, _NUMBER.sub(_SLOT, doubt))
                shared.setdefault(kind, []).append((row.fix, _NUMBER.findall(doubt)))
        for (measure, template), found in shared.items():
            fixes = list(dict.fromkeys(f"`{fix}`" for fix, _ in found))
            having = section.having(measure)
            who = "every fix" if len(fixes) == len(having) > 1 else join(fixes)
            text = _filled(template, [numbers for _, numbers in found])
            notes.append(f"Doubt, {section.mode} {measure.replace('_', ' ')} of {who}: {text}")
    return notes


def _doubts(row: Row) -> list[tuple[str, str]]:
    """Doubts of a row with their measures; the first line of each, shortened."""
    found = []
    for measure, record in row.records.items():
        for doubt in (record.data or {}).get("doubts") or () if record.status == "passed" else ():
            first = (str(doubt).strip().splitlines() or [""])[0]
            found.append((measure, first if len(first) <= _LONGEST_DOUBT else first[: _LONGEST_DOUBT - 1] + "…"))
    return found


def _filled(template: str, numbers: Sequence[Sequence[str]]) -> str:
    """Put numbers back into a template: the one that all share, or the smallest and the largest."""
    columns = iter(zip(*numbers, strict=True))

    def text(_: re.Match[str]) -> str:
        found = sorted(set(next(columns)), key=lambda number: float(number.replace("−", "-")))
        return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"

    return re.sub(_SLOT, text, template)
