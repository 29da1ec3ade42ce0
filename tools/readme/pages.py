"""Writes a run's tables of the systems into their pages, so that the pages' numbers are regenerated and never typed.

``python -m tools.readme.pages RUN_DIR PAGE...`` replaces, in each Markdown page, what stands between
``<!-- CASE:begin -->`` and ``<!-- CASE:end -->`` for every case that has such markers there; everything
outside is left byte for byte. ``CASE.versions`` is what depends on the torch version there, ``operations`` what
torch's own operations do by version, ``environment`` what the page's cases were measured with.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from precision_eval.core.errors import ParameterError, PrecisionEvalError
from precision_eval.core.formatting import MISSING, fixed, memory_text, scientific, with_interval
from precision_eval.diagnose.explain.reading import short_reason
from precision_eval.report.provenance import doubt_notes, latency_notes
from precision_eval.report.tables import Table, confidence_text
from precision_eval.report.tables_parts import sampler_text, shares_text
from precision_eval.report.text import environment_markdown, markdown_table
from precision_eval.report.version_notes import operations_table, version_table
from precision_eval.results.data import Row, Run, Section, figure_of, load_run, memory_bytes
from tools.readme.blocks import write_block

_VERSIONS = ".versions"
_ENVIRONMENT = "environment"
_OPERATIONS = "operations"
_MARKER = re.compile(r"<!-- ([\w.-]+):begin -->")


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
        notes=(*_messages(ordered), *latency_notes(ordered), *doubt_notes(ordered)),
    )


def _cells(fix: str, rows: Sequence[Row | None]) -> tuple[str, ...]:
    """One line: statuses, then the figures of the first mode that has them, latency per mode."""
    present = [row for row in rows if row is not None]
    drift = next((row.drift for row in present if row.drift), None)
    memory = next((found for row in present if (found := memory_bytes(row)) is not None), None)
    return (
        fix,
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


def _messages(sections: Iterable[Section]) -> list[str]:
    """One line per distinct message, with the fixes and modes that ended in it."""
    shared: dict[tuple[str, str], list[str]] = {}
    for section in sections:
        for row in section.failing:
            shared.setdefault((row.status, short_reason(row.reason)), []).append(f"{row.fix} ({section.mode})")
    return [f"{', '.join(who)}: {status}: {reason}" for (status, reason), who in shared.items()]


def write_page(page: Path, run: Run) -> bool:
    """Fill every pair of markers of a page that names a case."""
    names = _MARKER.findall(page.read_text(encoding="utf-8"))
    if not names:
        raise ParameterError(f"{page} has no markers; put <!-- CASE:begin --> and <!-- CASE:end --> in it")
    changed = False
    cases = {name for name in names if name not in (_ENVIRONMENT, _OPERATIONS) and not name.endswith(_VERSIONS)}
    for name in names:
        changed |= write_block(page, name, _block(run, name, cases))
    return changed


def _block(run: Run, name: str, cases: Collection[str]) -> str:
    if name == _ENVIRONMENT:
        return environment_markdown(run, cases or None)
    if name == _OPERATIONS:
        return markdown_table(operations_table(), heading=True)
    if name.endswith(_VERSIONS):
        versions = version_table(run, case=name.removesuffix(_VERSIONS))
        return "Nothing here depends on it." if versions is None else markdown_table(versions, heading=True)
    return markdown_table(system_table(run, name), heading=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.readme.pages", description=__doc__.splitlines()[0])
    parser.add_argument("run_dir", type=Path, help="folder of a run, with records.jsonl")
    parser.add_argument("pages", type=Path, nargs="+", help="Markdown files with markers")
    chosen = parser.parse_args(arguments)
    try:
        run = load_run(chosen.run_dir.resolve())
        for page in chosen.pages:
            print(f"{page}: {'written' if write_page(page, run) else 'already up to date'}")
    except (PrecisionEvalError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
