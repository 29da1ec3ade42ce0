"""Writes the files of a report, each whole or not at all, and prints its tables."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from precision_eval.core.files import PARTIAL, move_whole, remove_unfinished
from precision_eval.core.formatting import grouped, join, one_line, status_text, visible
from precision_eval.core.table import Table, markdown_text, print_lines, print_table, to_csv, to_markdown
from precision_eval.report.doubts import Footnotes
from precision_eval.report.guide import environment_lines, environment_markdown, reading_guide
from precision_eval.report.next_step import budget_to_decide, next_command
from precision_eval.report.tables import answer_of, group_table, recordings_table, results_table, sound_table
from precision_eval.results.model import Group
from precision_eval.results.reading import Run, load_run

if TYPE_CHECKING:
    from rich.console import Console

FIGURES_NAME = "figures"


@dataclass(frozen=True, kw_only=True)
class Drawing:
    group: Group
    kind: str
    png: Path
    svg: Path


def write_report(run_dir: Path, *, console: Console | None = None) -> list[Path]:
    """Write the files of a run's report into its folder, and print it where a console is given.

    Parameters
    ----------
    run_dir : Path
        Folder with ``records.jsonl``.
    console : rich.console.Console, optional
        Where every table, the notes and the reading guide are printed.

    Returns
    -------
    list of Path
        ``report.md``, ``results.csv``, ``report.html``, then figures as PNG and SVG under ``figures/``. A figure whose
        measure is missing is left out.

    Raises
    ------
    RecordError
        There are no records, or they cannot be read.
    """
    from precision_eval.report.html.page import FILE_NAME, render_html

    run_dir = Path(run_dir)
    run = load_run(run_dir)
    remove_unfinished(run_dir)
    with TemporaryDirectory(
        prefix=".report-", suffix=f".{os.getpid()}{PARTIAL}", dir=run_dir
    ) as name:  # a kill leaves no half report
        unfinished = Path(name)
        drawings = draw_figures(run, unfinished)
        texts = {
            "report.md": markdown_report(run, drawings),
            "results.csv": to_csv(results_table(run)),
            FILE_NAME: render_html(run, {(one.group.slug, one.kind): one.svg for one in drawings}),
        }
        for file, text in texts.items():
            write_file(unfinished / file, text)
        (run_dir / FIGURES_NAME).mkdir(exist_ok=True)
        files = [*(unfinished / file for file in texts), *(path for one in drawings for path in (one.png, one.svg))]
        written = [run_dir / path.relative_to(unfinished) for path in files]
        for path, target in zip(files, written, strict=True):
            move_whole(path, target)
    if console is not None:
        print_report(run, console)
    return written


def write_file(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="")


def draw_figures(run: Run, directory: Path) -> list[Drawing]:
    from precision_eval.report.drawing import NotDrawn, save
    from precision_eval.report.figures import FIGURES

    drawings = []
    for group in run.sections:
        for kind, draw in FIGURES.items():
            try:
                png, svg = save(draw(run, group), directory / FIGURES_NAME, f"{kind}-{group.slug}")
            except NotDrawn:
                continue
            drawings.append(Drawing(group=group, kind=kind, png=png, svg=svg))
    return [*drawings, *_draw_lengths(run, directory)]


def _draw_lengths(run: Run, directory: Path) -> Iterator[Drawing]:
    """Draw time over length, one figure for all sizes of a case that are lengths; it belongs to the last of them."""
    from precision_eval.report.drawing import NotDrawn, save
    from precision_eval.report.figures.lengths import draw_lengths

    lengths = [group for group in run.sections if group.size.isdecimal()]
    for (case, where), groups in grouped(((g.case, f"{g.where}, {g.mode}"), g) for g in lengths).items():
        with suppress(NotDrawn):
            figure = draw_lengths(case, where, groups)
            png, svg = save(figure, directory / FIGURES_NAME, f"lengths-{groups[-1].slug}")
            yield Drawing(group=groups[-1], kind="lengths", png=png, svg=svg)


def markdown_report(run: Run, drawings: Sequence[Drawing]) -> str:
    notes = Footnotes()
    parts = [f"# Report of `{visible(run.directory.resolve().name)}`", environment_markdown(run)]
    parts += [f"- Not counted: {markdown_text(line)}" for line in run.damage]
    for group in run.sections:
        tables = list(tables_of(run, group, notes))
        if not tables:
            continue
        parts.append(f"## {markdown_text(tables[0].title)}")
        parts += [to_markdown(table, heading=number > 0) for number, table in enumerate(tables)]
        parts += [
            f"![{drawing.kind} of {markdown_text(group.title)}]({FIGURES_NAME}/{drawing.png.name})"
            for drawing in drawings
            if drawing.group is group
        ]
    parts += ["## Notes", notes_markdown(notes)] if notes.lines else []
    parts.append("\n".join(["## How to read this", "", *(f"- {line}" for line in reading_guide(run))]))
    return "\n\n".join(part for part in parts if part) + "\n"


def notes_markdown(notes: Footnotes) -> str:
    return "\n".join(f"{number}. {markdown_text(text)}" for number, text in enumerate(notes.texts, start=1))


def tables_of(run: Run, group: Group, notes: Footnotes) -> Iterator[Table]:
    """Yield the tables of a group that have something to say, the costs first."""
    if group.fixes or group.rows:
        yield group_table(answer_of(group), notes)
    tables = (sound_table(run, group), recordings_table(run, group, notes))
    yield from (table for table in tables if table is not None)


def print_report(run: Run, console: Console) -> None:
    notes = Footnotes()
    print_lines(environment_lines(run), console, style="dim")
    for group in run.sections:
        for table in tables_of(run, group, notes):
            print_table(table, console)
            console.print()
    _print_notes(run, notes, console)
    print_lines(["How to read this", *(f"  · {line}" for line in reading_guide(run))], console)


class TerminalAnswer:
    """Prints the short table of each group of a run once, as soon as its case is measured, and numbers all notes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._notes = Footnotes()
        self._printed: dict[str, Group] = {}

    def print_groups(self, run: Run, case: str | None = None) -> None:
        """Print the tables of a case, or of every case, that something cures; what fails is kept for the end."""
        for group in run.sections:
            if not group.fixes or group.slug in self._printed or case not in (None, group.case):
                continue
            self._printed[group.slug] = group
            if group.curing:
                print_table(group_table(answer_of(group), self._notes, short=True), self._console, compact=True)
            elif group.fault:
                print_lines([group.fault], self._console)

    def print_rest(self, run: Run) -> None:
        """Print what is not printed yet, what fails, and the notes."""
        self.print_groups(run)
        print_lines(map(one_line, _failures(tuple(self._printed.values()))), self._console)
        _print_notes(run, self._notes, self._console)
        print_lines(["Bold: best balance of time and drift; ≈: not told apart. Below 1 is faster."], self._console)


def _failures(groups: Sequence[Group]) -> Iterator[str]:
    """Say where nothing cures, then which fixes fail and why, each message once."""
    uncured = [_place(group, groups) for group in groups if not group.curing and not group.fault]
    if uncured:
        yield f"Nothing measured cures {join(uncured)}."
    places: dict[tuple[str, str], dict[str, list[str]]] = {}
    for group in groups:
        for failure, fixes in group.failing_by_reason.items():
            for fix in fixes:
                places.setdefault(failure, {}).setdefault(fix, []).append(_place(group, groups))
    for (status, reason), by_fix in places.items():
        for where, fixes in grouped((tuple(where), fix) for fix, where in by_fix.items()).items():
            at = "" if len(where) == len(groups) else f" in {join(where)}"
            yield f"{', '.join(fixes)} {status_text(status)}{at}: {reason}"


def _place(group: Group, groups: Sequence[Group]) -> str:
    """Name a group by its case, and by what tells it from the other groups of that case."""
    others = [other for other in groups if other.case == group.case]
    names = ("size", "mode", "device", "pins")
    differing = (name for name in names if len({getattr(other, name) for other in others}) > 1)
    return " ".join((group.case, *(getattr(group, name) for name in differing))).rstrip()


def print_answer(run: Run, console: Console) -> None:
    """Print the short table of each group that something cures, then what nothing cures, and the notes."""
    TerminalAnswer(console).print_rest(run)


def print_next(run: Run, console: Console) -> None:
    print_lines([f"Next: {next_command(run)}"], console, soft_wrap=True)


def answer_dicts(run: Run) -> list[dict[str, Any]]:
    names = ("case", "size", "mode", "device", "threads", "pins", "baseline", "fault")
    dicts = []
    for answer in (answer_of(group) for group in run.sections if group.fixes):
        group = answer.group
        fixes = [
            plain | {"budget_to_decide_s": budget_to_decide(group, row)}
            for row, plain in zip(group.fixes, group.fix_dicts(), strict=True)
        ]
        place = {name: getattr(group, name) for name in names}
        outcome = None if answer.choice is None else answer.choice.outcome
        dicts.append(place | {"outcome": outcome, "pick": answer.pick, "ties": list(answer.ties), "fixes": fixes})
    return dicts


def _print_notes(run: Run, notes: Footnotes, console: Console) -> None:
    print_lines([one_line(line) for line in notes.lines], console, style="dim")
    print_lines([f"Not counted: {one_line(line)}" for line in run.damage], console, style="yellow")
