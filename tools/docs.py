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
from precision_eval.core.table import Table, make_table, markdown_text, to_markdown
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
TIME = "time ratio"
_VERDICTS = ("wrong", "missed", "partly", "right")
DRAWS = ("fifth", "fourth", "third")  # folders of docs/reports that the page lists, the newest first
COLUMNS_SHOWN = ("fix", TIME, "memory", "drift", "diverged", "sound")
COLUMNS_LEFT_OUT = ("attention ran in", "backend", "casts of a call")
# Sizes, tables and metrics that the reports of the runs have, and pages do not.
SIZES_LEFT_OUT = ("dia",)
TABLES_LEFT_OUT = ("Recordings",)
METRICS_LEFT_OUT = ("latency_to_anchor", "stored_bytes", "peak_bytes")
_MARKER = re.compile(r"<!-- ([\w.-]+):begin -->")


def run_markdown(folder: Path, page: Path) -> str:
    """Return the tables and main figures of a run, and where the rest is."""
    run, place = load_run(folder), Path(os.path.relpath(folder, page.parent)).as_posix()
    parts = [f"From the records in `{place}`. {environment_line(run.environment)}".strip()]
    notes = Footnotes()
    groups = [section for section in run.sections if section.curing and section.size not in SIZES_LEFT_OUT]
    tables = [table for group in groups for table in tables_of(run, group, notes) if len(table.columns) > 1]
    parts.append(_markdown([_shown(table) for table in tables if not table.title.startswith(TABLES_LEFT_OUT)], notes))
    parts.append(f"All sizes, columns and intervals: [{place}/report.md]({place}/report.md).")
    drawn = sorted((folder / "figures").glob("*.png"))
    shown = [
        path
        for path in drawn
        if path.name.startswith(FIGURES_SHOWN) and not set(SIZES_LEFT_OUT) & set(path.name.split("-"))
    ]
    parts += [f"![{path.stem}]({Path(os.path.relpath(path, page.parent)).as_posix()})" for path in shown]
    return "\n\n".join(parts)


def _markdown(tables: Sequence[Table], notes: Footnotes) -> str:
    written = [to_markdown(table, heading=True) for table in tables]
    listed = "\n".join(map(_first_words, notes_markdown(notes).splitlines()))
    return "\n\n".join([*written, *([listed] if listed else [])])


def _shown(table: Table, columns: Sequence[str] = COLUMNS_SHOWN) -> Table:
    """Return the table with the columns that pages show, a number a cell; one of other columns keeps most of them."""
    names = [_without_interval(name) for name in table.columns]
    kept = [number for number, name in enumerate(names) if name in columns]
    if len(kept) < len(("fix", "time ratio")):
        kept = [number for number, name in enumerate(names) if name not in COLUMNS_LEFT_OUT]
    return replace(
        table,
        columns=tuple(names[number] for number in kept),
        rows=tuple(
            tuple(
                _time_cell(table, row) if names[number] == TIME else _without_interval(row[number]) for number in kept
            )
            for row in table.rows
        ),
        align="".join(table.alignment(number) for number in kept),
    )


def _without_interval(cell: str) -> str:
    text = re.sub(r" \[[^\[\]]*\]", "", cell)
    return cell if text == cell else text  # a cell that stands out stays one


def _time_cell(table: Table, row: Sequence[str]) -> str:
    """Return the ratio of a row without its interval, *undecided* where it is, or why there is none."""
    result = row[table.columns.index("result")]
    number = next((number for number, name in enumerate(table.columns) if name.startswith(TIME)), None)
    if number is None or row[number] == MISSING:
        return result
    return _without_interval(row[number]) + (" undecided" if result == "undecided" else "")


def _with_mode(table: Table, other: Table, mode: str) -> Table:
    """Return a table with a column more: the time of each fix in another mode, or why there is none."""
    cells = {row[0].removeprefix("≈ "): _time_cell(other, row) for row in other.rows}
    rows = [(*row, cells.pop(row[0].removeprefix("≈ "), MISSING)) for row in table.rows]
    rows += [(fix, *([MISSING] * (len(table.columns) - 1)), cell) for fix, cell in cells.items()]
    return replace(
        table,
        title=f"{table.title}; {mode}{other.title.partition(f' {mode}')[2]}",
        columns=(*table.columns, f"{mode}, {TIME}"),
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


def case_markdown(run: Run, case: str, *, short: bool = False) -> str:
    """Return the table of one case of a run, with a second mode as a column, or a short one of times and drift."""
    groups = [section for section in run.sections if (section.case, section.pins) == (case, "")]
    if not groups:
        held = ", ".join(sorted({section.case for section in run.sections}))
        raise ParameterError(f"{run.directory} holds nothing of the case '{case}'; it holds {held}")
    notes = Footnotes()
    if short:
        return _markdown([_shown(next(iter(tables_of(run, groups[0], notes))), ("fix", TIME, "drift"))], notes)
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
    shown = [series for series in history.changed if series.key.metric not in METRICS_LEFT_OUT]
    steps = [(series.key, step) for series in shown for step in series.steps]
    changes: dict[tuple[str, str, str, str], list[str]] = {}
    for key, step in sorted(steps, key=lambda entry: entry[0][:3]):
        place = (key.case, f"{key.mode}, {key.size}", key.metric.replace("_", " "), step.at)
        changes.setdefault(place, []).append(f"{key.fix} {step_text(step).removesuffix(f' at {step.at}')}")
    rows = [(*place, _span_of(texts)) for place, texts in changes.items()]
    columns = ("case", "mode, size", "metric", "since torch", "change")
    return to_markdown(make_table(columns, rows, title=heading(history)), heading=True)


def _span_of(texts: Sequence[str]) -> str:
    """Write up to two steps as they are; of more factors, their number, the least and the largest."""
    factors = [text.rpartition(" ×")[2] for text in texts if " ×" in text]
    if len(texts) < 3 or len(factors) < len(texts):
        return ", ".join(texts)
    least, most = min(factors, key=float), max(factors, key=float)
    return f"{len(texts)} fixes ×{least}" + (f" to ×{most}" if most != least else "")


def reports_markdown(file: Path, page: Path) -> str:
    """Return public reports by verdict, for each half of each draw."""
    lists = {
        f"## {draw.capitalize()} draw, {half}": _reports_of(page.parent / "reports" / draw, half)
        for draw in DRAWS
        for half in ("held", "open")
    }
    return "\n\n".join(f"{heading}\n\n{text}" for heading, text in lists.items() if text)


def _reports_of(folder: Path, half: str) -> str:
    """List the worst verdicts first; a verdict has an arrow to the one since, where that is another.

    Those that were right at once are links alone.
    """
    cases = tomllib.loads((folder / "answers.toml").read_text(encoding="utf-8"))["case"]
    verdicts = tomllib.loads((folder / "verdicts.toml").read_text(encoding="utf-8"))
    lists: dict[tuple[str, ...], list[str]] = {}
    for case in (case for case in cases if case["set"] == half):
        read = verdicts[case["id"]]
        since = tuple(read[name] for name in ("verdict", "since") if name in read)
        link = f"[{_thread(case['source'])}]({case['source']})"
        if since == ("right",):
            lists.setdefault(since, []).append(link)
            continue
        command = "" if case["tool"] == "doctor" else f" {case['tool']}"
        symptom = markdown_text(case.get("short") or _first_words(case["symptom"], 8))
        lists.setdefault(since, []).append(f"- {link}{command}: {symptom}")
    ordered = sorted(lists.items(), key=lambda entry: [_VERDICTS.index(verdict) for verdict in entry[0]])
    return "\n\n".join(
        f"**{' → '.join(since).capitalize()}, {len(lines)}**\n\n" + ("\n" if lines[0][0] == "-" else ",\n").join(lines)
        for since, lines in ordered
    )


def _first_words(text: str, most: int = 14) -> str:
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
    "h200": ("h200", h200.overview_markdown),
    "h200-hour": ("h200", h200.hour_markdown),
    "h200-trials": ("h200", h200.trials_markdown),
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


def _with_short_environment(content: str) -> str:
    return re.sub(r"(commit: \w{8})\w+", r"\1", re.sub(r"; python: [^;]+; system: [^;]+", "", content))


def page_text(page: Path, results: Path) -> str:
    """Return a page with every block made anew from a folder of results."""
    text = page.read_text(encoding="utf-8")
    names = OF_OTHERS.get(page.name) or _MARKER.findall(text)
    if not names:
        raise ParameterError(f"{page} has no markers; put <!-- NAME:begin --> and <!-- NAME:end --> in it")
    cases = {name for name in names if name != ENVIRONMENT and name not in BLOCKS}
    main = next((name for name in names if name in cases), "")
    systems = cache(lambda: load_run(results / "systems"))
    for name in names:
        if name in BLOCKS:
            source, make = BLOCKS[name]
            content = make((results / source).resolve(), page.resolve())
        elif name == ENVIRONMENT:
            content = environment_markdown(systems(), cases)
        else:
            content = case_markdown(systems(), name, short=name != main)
        text = replace_block(text, name, _with_short_environment(content), page=page)
    return text


def write_docs(pages: Sequence[Path], results: Path) -> None:
    """Write the blocks of pages and say which changed."""
    for page in pages:
        text = page_text(page, results)
        changed = text != page.read_text(encoding="utf-8")
        page.write_text(text, encoding="utf-8")
        print(f"{page}: {'written' if changed else 'already up to date'}")
