"""Writes the files of a report, each whole or not at all, and prints it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from precision_eval.core.files import PARTIAL, move_whole, remove_unfinished
from precision_eval.core.formatting import grouped
from precision_eval.core.table import print_lines
from precision_eval.report.tables import write_csv
from precision_eval.report.text import findings, markdown_report, print_report
from precision_eval.results.reading import Run, load_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

FIGURES_NAME = "figures"
TIMED_CASE = "voice"
"""The shipped case that runs over time; where nothing runs over time a missing figure of it is worth no line."""


def write_report(run_dir: Path, *, console: Console | None = None) -> list[Path]:
    """Write the files of a run's report into its folder, and print it where a console is given.

    Parameters
    ----------
    run_dir : Path
        Folder with ``records.jsonl``.
    console : rich.console.Console, optional
        Where every table, the findings and the reading guide are printed.

    Returns
    -------
    list of Path
        ``report.md``, ``results.csv``, then figures as PNG and SVG under ``figures/``. A figure whose measure is
        missing is left out; report.md says why.

    Raises
    ------
    RecordError
        There are no records, or they cannot be read.
    """
    run_dir = Path(run_dir)
    run = load_run(run_dir)
    remove_unfinished(run_dir)
    with TemporaryDirectory(
        prefix=".report-", suffix=f".{os.getpid()}{PARTIAL}", dir=run_dir
    ) as name:  # a kill leaves no half report
        unfinished = Path(name)
        drawn, left_out = draw_figures(replace(run, directory=unfinished))
        figures = [run_dir / path.relative_to(unfinished) for path in drawn]
        pngs = [path for path in figures if path.suffix == ".png"]
        csv_path, report = run_dir / "results.csv", run_dir / "report.md"
        write_csv(run, unfinished / csv_path.name)
        said = findings(run)
        text = markdown_report(run, said, figures=pngs, left_out=left_out)
        (unfinished / report.name).write_text(text, encoding="utf-8")
        (run_dir / FIGURES_NAME).mkdir(exist_ok=True)
        for path in (*figures, csv_path, report):
            move_whole(unfinished / path.relative_to(run_dir), path)
    if console is not None:
        print_report(run, said, console=console, files=[report, csv_path, *pngs])
        print_lines([f"Left out: {line}" for line in left_out], console, style="yellow")
    return [report, csv_path, *figures]


def draw_figures(run: Run) -> tuple[list[Path], list[str]]:
    """Draw every figure that the records allow."""
    from precision_eval.report.drawing import NotDrawn, save

    files: list[Path] = []
    left_out: list[str] = []
    for stem, draw in _figures(run):
        try:
            figure = draw()
        except NotDrawn as missing:
            left_out.append(str(missing))
            continue
        files += save(figure, run.directory / FIGURES_NAME, stem)
    return files, left_out


def _figures(run: Run) -> Iterator[tuple[str, Callable[[], Figure]]]:
    from precision_eval.report.figures.bars import draw_memory
    from precision_eval.report.figures.lengths import draw_lengths
    from precision_eval.report.figures.over_time import draw_audio, draw_drift, draw_survival
    from precision_eval.report.figures.tradeoff import draw_tradeoff

    grids = grouped(((section.case, section.where), section) for section in run.sections)
    for (case, device), sections in grids.items():
        name = f"{case}-{device}".replace(":", "").replace(" ", "-")
        yield f"tradeoff-{name}", partial(draw_tradeoff, case, device, sections)
        yield f"memory-{name}", partial(draw_memory, case, device, sections)
        lengths = [section for section in sections if section.size.isdecimal()]
        for mode, of_mode in grouped((section.mode, section) for section in lengths).items():
            yield f"lengths-{name}-{mode}", partial(draw_lengths, case, f"{device}, {mode}", of_mode)
    for section in run.sections:
        if section.case == TIMED_CASE or section.having("teacher_forced_drift", "divergence", "audio"):
            yield f"drift-{section.slug}", partial(draw_drift, run, section)
            yield f"audio-{section.slug}", partial(draw_audio, run, section)
            yield f"survival-{section.slug}", partial(draw_survival, run, section)
