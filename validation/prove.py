"""What ``prove`` does: run the experiments that are missing, then print and draw what all of them found."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from precision_eval.cli import EXIT_INTERRUPTED
from precision_eval.core.errors import PrecisionEvalError
from precision_eval.core.files import check_own_folder
from validation.catalog import EXPERIMENTS, Experiment, Figure, Size, experiment_by_name
from validation.tables import figures_markdown

FIGURES_NAME = "figures.json"
REPORT_NAME = "report.md"
_MET = {True: "[green]met[/green]", False: "[red]missed[/red]", None: ""}


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the command line asks for."""

    names: tuple[str, ...]
    size: Size
    out: Path
    report_only: bool


def prove_command(request: Request) -> None:
    """Run, print and draw."""
    check_own_folder(request.out, *(f"{experiment.name}.jsonl" for experiment in EXPERIMENTS))
    console = Console()
    chosen = [experiment_by_name(name) for name in request.names] or list(EXPERIMENTS)
    if not request.report_only:
        try:
            for experiment in chosen:
                _run(experiment, request, console)
        except KeyboardInterrupt:
            console.print("Stopped. Trials that were finished are kept; the same command goes on from there.")
            sys.exit(EXIT_INTERRUPTED)
    found = {experiment.name: _report(experiment, request.out, console) for experiment in chosen}
    if not any(found.values()):
        raise PrecisionEvalError(
            f"{request.out} holds no trials of {', '.join(found)}; run `precision-eval prove` first"
        )
    _write_report(found, request.out)


def _run(experiment: Experiment, request: Request, console: Console) -> None:
    """Run one experiment under a progress bar; on no terminal, one line per experiment."""
    console.print(f"[bold]{experiment.name}[/bold]: {experiment.title}")
    columns = (
        TextColumn("  {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=None)

        def show(done: int, total: int, what: str) -> None:
            progress.update(task, completed=done, total=total, description=what[:40])

        experiment.load().run(request.out, size=request.size, progress=show)


def _report(experiment: Experiment, out: Path, console: Console) -> list[Figure]:
    """Print the figures of an experiment and draw its plots, from the trials alone."""
    module = experiment.load()
    figures = module.figures(out)
    if not figures:
        return []
    table = Table(title=f"{experiment.name}: {experiment.title}", title_justify="left", title_style="bold")
    for column in ("figure", "target", "found", "", "others, same trials"):
        table.add_column(column, overflow="fold")
    for figure in figures:
        rivals = "\n".join(f"{name}: {value}" for name, value in figure.rivals.items())
        table.add_row(figure.name, figure.target, figure.found, _MET[figure.met], rivals)
    console.print(table)
    plots = module.plot(out)
    if plots:
        console.print(f"  drawn: {', '.join(str(path) for path in plots)}", style="dim", highlight=False)
    return figures


def _write_report(found: dict[str, list[Figure]], out: Path) -> None:
    """Keep all figures as JSON and Markdown, beside those of experiments that were not asked for this time."""
    path = out / FIGURES_NAME
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    known |= {name: [asdict(figure) for figure in figures] for name, figures in found.items() if figures}
    ordered = {entry.name: known[entry.name] for entry in EXPERIMENTS if entry.name in known}
    text = json.dumps(ordered, indent=1, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")
    parts = ["# How far the measuring can be trusted"]
    for name, figures in ordered.items():
        parts += [f"## {experiment_by_name(name).title}", figures_markdown(figures, only_targets=False)]
        parts += [f"![{plot.stem}]({plot.name})" for plot in sorted(out.glob(f"{name}*.png"))]
    (out / REPORT_NAME).write_text("\n\n".join(parts) + "\n", encoding="utf-8")
