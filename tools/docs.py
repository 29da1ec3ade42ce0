"""Writes the blocks of ``docs/`` that results fill, so that their numbers are regenerated and never typed.

A block stands between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->``; everything outside is left byte for byte. On a
system's page the names are cases of ``results/systems``. Pages show the columns that a reader decides by;
``precision-eval report`` writes all of them.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from precision_eval.core.errors import ParameterError
from precision_eval.core.formatting import MISSING
from precision_eval.core.table import Table, make_table, to_markdown
from precision_eval.report.doubts import Footnotes
from precision_eval.report.guide import environment_line, environment_markdown
from precision_eval.report.writer import notes_markdown, tables_of
from precision_eval.results.reading import Run, load_run
from tools import h200
from tools.capabilities import capabilities_markdown

SYSTEM_PAGES = ("cogvideo-t5.md", "dia.md", "imaginairy.md", "metavoice-t4.md", "metavoice.md")
PAGES = ("gpu.md", "reports.md", "results.md", "validation.md", "whisper.md", *SYSTEM_PAGES)
OF_OTHERS = {"validation.md": ("capabilities",)}  # a page whose other blocks `python -m validation --page` writes
ENVIRONMENT = "environment"
FIGURES_SHOWN = ("tradeoff-",)
COLUMNS_SHOWN = ("fix", "result", "time ratio", "call", "memory", "drift", "diverged", "sound")
_MARKER = re.compile(r"<!-- ([\w.-]+):begin -->")


def run_markdown(folder: Path, page: Path) -> str:
    """Return the tables and main figures of a run, and where the rest is."""
    run, place = load_run(folder), Path(os.path.relpath(folder, page.parent)).as_posix()
    parts = [f"From the records in `{place}`. {environment_line(run.environment)}".strip()]
    notes = Footnotes()
    groups = [section for section in run.sections if section.curing]
    tables = [table for group in groups for table in tables_of(run, group, notes) if len(table.columns) > 1]
    parts.append(_markdown([_shown(table) if table.columns[0] == "fix" else table for table in tables], notes))
    parts.append(f"All tables and columns: [{place}/report.md]({place}/report.md).")
    drawn = sorted((folder / "figures").glob("*.png"))
    shown = [path for path in drawn if path.name.startswith(FIGURES_SHOWN)]
    parts += [f"![{path.stem}]({Path(os.path.relpath(path, page.parent)).as_posix()})" for path in shown]
    return "\n\n".join(parts)


def _markdown(tables: Sequence[Table], notes: Footnotes) -> str:
    written = [to_markdown(table, heading=True) for table in tables]
    return "\n\n".join([*written, *([notes_markdown(notes)] if notes.lines else [])])


def _shown(table: Table) -> Table:
    """Return the table with the columns that pages show; a table of a plugin's measure has others, and keeps them."""
    kept = [number for number, name in enumerate(table.columns) if name.partition(" [")[0] in COLUMNS_SHOWN]
    return _with_columns(table, kept) if len(kept) > len(("fix", "result")) else table


def _with_columns(table: Table, kept: Sequence[int]) -> Table:
    return replace(
        table,
        columns=tuple(table.columns[number] for number in kept),
        rows=tuple(tuple(row[number] for number in kept) for row in table.rows),
        align="".join(table.alignment(number) for number in kept),
    )


def _with_mode(table: Table, other: Table, mode: str) -> Table:
    """Return a table with a column more: the result and time of each fix in another mode."""
    time = next((number for number, name in enumerate(other.columns) if name.startswith("time ratio")), None)
    cells = {
        row[0].removeprefix("≈ "): row[1] if time is None or row[time] == MISSING else f"{row[1]} {row[time]}"
        for row in other.rows
    }
    rows = [(*row, cells.pop(row[0].removeprefix("≈ "), MISSING)) for row in table.rows]
    rows += [(fix, *([MISSING] * (len(table.columns) - 1)), cell) for fix, cell in cells.items()]
    return replace(
        table,
        title=f"{table.title}; {mode}{other.title.partition(f' {mode}')[2]}",
        columns=(*table.columns, f"{mode}, time ratio"),
        rows=tuple(rows),
        align=f"{table.align}r",
        kinds=(),
    )


def fixes_markdown(folder: Path, page: Path) -> str:
    """Return a table of fixes per case of a run."""
    run, notes = load_run(folder), Footnotes()
    groups = [section for section in run.sections if section.curing]
    tables = [_shown(table) for group in groups for table in tables_of(run, group, notes) if table.columns[0] == "fix"]
    return f"{_markdown(tables, notes)}\n\n{environment_markdown(run)}"


def case_markdown(run: Run, case: str) -> str:
    """Return the table of one case of a run; a second mode is a column of it."""
    groups = [section for section in run.sections if (section.case, section.pins) == (case, "")]
    if not groups:
        held = ", ".join(sorted({section.case for section in run.sections}))
        raise ParameterError(f"{run.directory} holds nothing of the case '{case}'; it holds {held}")
    notes = Footnotes()
    (first, *others), *rest = [list(tables_of(run, group, notes)) for group in groups]
    table = _shown(first)
    for group, (other, *more) in zip(groups[1:], rest, strict=True):
        table, others = _with_mode(table, other, group.mode), [*others, *more]
    return _markdown([table, *others], notes)


def voice_markdown(file: Path, page: Path) -> str:
    """Return how well the shipped voice is understood."""
    stored = json.loads(file.read_text(encoding="utf-8"))

    def mean(group: str, part: str) -> str:
        return f"{100 * sum(heard[part] for heard in stored[group]) / len(stored[group]):.1f} %"

    groups = (("the voice, free-running", "free_running"), ("original tokens, resynthesized", "resynthesised"))
    rows = [(name, *(mean(group, part) for part in ("value", "first_third", "last_third"))) for name, group in groups]
    title = f"Phonemes right, {len(stored['free_running'])} speakers × {stored['minutes']:g} minutes:"
    return f"{title}\n\n{to_markdown(make_table(('speech', 'whole', 'first third', 'last third'), rows))}"


def versions_markdown(folder: Path, page: Path) -> str:
    """Return what changed between torch versions: a row per case, metric and version, with the step of each fix."""
    from precision_eval.history.asv_results import read_results
    from precision_eval.history.versions import history_of
    from precision_eval.report.versions import heading, step_text

    history = history_of(read_results(folder))
    steps = [(series.key, step) for series in history.changed for step in series.steps]
    changes: dict[tuple[str, str, str, str], list[str]] = {}
    for key, step in sorted(steps, key=lambda entry: entry[0][:3]):
        place = (key.case, f"{key.mode}, {key.size}", key.metric.replace("_", " "), step.at)
        changes.setdefault(place, []).append(f"{key.fix} {step_text(step).removesuffix(f' at {step.at}')}")
    rows = [(*place, ", ".join(texts)) for place, texts in changes.items()]
    columns = ("case", "mode, size", "metric", "since torch", "change")
    return to_markdown(make_table(columns, rows, title=heading(history)), heading=True)


def reports_markdown(file: Path, page: Path) -> str:
    """Return public reports with their verdicts, a table for each half of each draw."""
    first = page.parent / "reports"
    return "\n\n".join(
        f"**{draw} draw, {half}: {_reports_table(folder, half)}"
        for draw, folder in (("Second", first / "second"), ("First", first))
        for half in ("held", "open")
    )


def _reports_table(folder: Path, half: str) -> str:
    cases = tomllib.loads((folder / "answers.toml").read_text(encoding="utf-8"))["case"]
    verdicts = tomllib.loads((folder / "verdicts.toml").read_text(encoding="utf-8"))
    rows = []
    for case in (case for case in cases if case["set"] == half):
        verdict, link = verdicts[case["id"]], f"[{_thread(case['source'])}]({case['source']})"
        later = f" → {verdict['since']}" if "since" in verdict else ""
        rows.append(
            (link, case["tool"], f"{verdict['verdict']}{later}", case.get("short") or _first_words(case["symptom"]))
        )
    right = sum(verdict.startswith("right") for *_, verdict, _ in rows)
    table = to_markdown(make_table(("report", "command", "verdict", "symptom"), rows))
    return f"{right} of {len(rows)} right**\n\n" + table.replace("\\](", "](")  # these links are meant


def _first_words(text: str, most: int = 8) -> str:
    words = text.split()
    return " ".join(words) if len(words) <= most else " ".join(words[:most]) + " …"


def _thread(source: str) -> str:
    """Name a thread: ``owner/repository#7``; another page by its host."""
    found = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+)/(?:issues|pull|discussions)/(\d+).*", source)
    return f"{found[1]}#{found[2]}" if found else source.split("/")[2]


# Name of a block → what it is made from, below the folder of results, and how.
BLOCKS: dict[str, tuple[str, Callable[[Path, Path], str]]] = {
    "results": ("cpu", run_markdown),
    "voice": ("voice-quality.json", voice_markdown),
    "gpu": ("gpu", fixes_markdown),
    "h200": ("h200", h200.overview_markdown),
    "h200-hour": ("h200", h200.hour_markdown),
    "h200-plain": ("h200", h200.plain_markdown),
    "h200-trials": ("h200", h200.trials_markdown),
    "h200-fixes": ("h200", h200.fixes_markdown),
    "whisper": ("whisper", fixes_markdown),
    "reports": ("reports/reports.jsonl", reports_markdown),
    "versions": ("torch-versions", versions_markdown),
    "capabilities": ("capabilities.jsonl", capabilities_markdown),
}


def replace_block(text: str, name: str, content: str, *, page: Path) -> str:
    """Return the text with what is between the markers of `name` replaced."""
    first, last = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    begin, end = text.find(first), text.find(last)
    if text.count(first) != 1 or text.count(last) != 1 or end < begin:
        raise ParameterError(f"{page} must hold {first} and then {last}, once each; add these two lines")
    return f"{text[: begin + len(first)]}\n{content}\n{text[end:]}"


def page_text(page: Path, results: Path) -> str:
    """Return a page with every block made anew from a folder of results."""
    text = page.read_text(encoding="utf-8")
    names = OF_OTHERS.get(page.name) or _MARKER.findall(text)
    if not names:
        raise ParameterError(f"{page} has no markers; put <!-- NAME:begin --> and <!-- NAME:end --> in it")
    cases = {name for name in names if name != ENVIRONMENT and name not in BLOCKS}
    systems = cache(lambda: load_run(results / "systems"))
    for name in names:
        if name in BLOCKS:
            source, make = BLOCKS[name]
            content = make((results / source).resolve(), page.resolve())
        elif name == ENVIRONMENT:
            content = environment_markdown(systems(), cases)
        else:
            content = case_markdown(systems(), name)
        text = replace_block(text, name, content, page=page)
    return text


def write_docs(pages: Sequence[Path], results: Path) -> None:
    """Write the blocks of pages and say which changed."""
    for page in pages:
        text = page_text(page, results)
        changed = text != page.read_text(encoding="utf-8")
        page.write_text(text, encoding="utf-8")
        print(f"{page}: {'written' if changed else 'already up to date'}")
