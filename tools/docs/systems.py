"""A run's table of one system, and what depends on the torch version there, as Markdown."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from precision_eval.core.errors import ParameterError
from precision_eval.core.formatting import MISSING, fixed, memory_text, scientific, with_interval
from precision_eval.core.table import Code, MarkdownText, Table, to_markdown
from precision_eval.diagnose.explain.operations import operations_table
from precision_eval.report.tables import confidence_text, sampler_text, shares_text
from precision_eval.report.text import doubt_notes, environment_markdown, latency_notes
from precision_eval.report.version_notes import version_table
from precision_eval.results.messages import short_reason
from precision_eval.results.model import Group, Row, figure_of, memory_bytes
from precision_eval.results.reading import Run

VERSIONS = ".versions"
ENVIRONMENT = "environment"
OPERATIONS = "operations"


def system_markdown(run: Run, name: str, cases: Collection[str]) -> str:
    """Return the block of a system's page: a case, ``CASE.versions``, ``operations`` or ``environment``."""
    if name == ENVIRONMENT:
        return environment_markdown(run, cases or None)
    if name == OPERATIONS:
        return to_markdown(operations_table(), heading=True)
    if name.endswith(VERSIONS):
        versions = version_table(run, case=name.removesuffix(VERSIONS))
        return "Nothing here depends on it." if versions is None else to_markdown(versions, heading=True)
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
