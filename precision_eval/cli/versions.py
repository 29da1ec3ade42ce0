"""The command ``versions``: what changed over torch versions or commits, from asv's results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from precision_eval.cli import options
from precision_eval.cli.application import split
from precision_eval.cli.settings import VERSIONS, read_settings, set_option, settings_help
from precision_eval.core.files import null_where_not_finite, to_json
from precision_eval.core.formatting import visible
from precision_eval.core.table import print_lines, print_table, to_markdown

_STYLES = {"passed": "green", "raised": "red", "failed": "red", "non_finite": "red"}

HELP = """\
Reads asv's results and prints what changed beyond its margin: any status, bytes by 1 %, drift by half, latency
ratios by a quarter. asv detects the steps. Fixes that changed alike share a row; --verbose shows each at every version.
A terminal gets tables, a pipe gets Markdown.

[bold]Examples[/bold]

[cyan]precision-eval versions[/cyan]  the sweep in results/torch-versions

[cyan]precision-eval versions --case 'dia-*' --set metric=status,drift --figure dia.png[/cyan]

[cyan]precision-eval versions --results .asv/results --by commit --json[/cyan]
"""
HELP += settings_help(VERSIONS)


def versions(
    results: options.AsvResults = None,
    case: options.Case = None,
    by: Annotated[str, typer.Option(help="The axis: torch or commit.")] = "torch",
    as_json: options.Json = False,
    figure: Annotated[Path | None, typer.Option(help="Also draw a heatmap to this PNG or SVG file.")] = None,
    setting: Annotated[list[str] | None, set_option(VERSIONS)] = None,
    verbose: options.Verbose = False,
) -> None:
    from precision_eval.history.asv_results import read_results
    from precision_eval.history.versions import history_of
    from precision_eval.report.versions import as_data, changes_table, versions_table

    settings = read_settings(setting, VERSIONS)
    sets = read_results(results or Path("results/torch-versions"), machine=settings["machine"])
    history = history_of(sets, axis=by, cases=split(case, ("*",)), metrics=settings["metric"])
    console, table = Console(emoji=False), (versions_table if verbose else changes_table)(history)
    if figure is not None:
        from precision_eval.report.versions import draw_heatmap

        draw_heatmap(history, figure)
        print_lines([f"wrote {figure}"], Console(stderr=True))
    if as_json:
        typer.echo(to_json(null_where_not_finite(as_data(history)), what="the history", indent=1))
    elif console.is_terminal:
        print_table(table, console, styles=_STYLES)
        print_lines([f"note: {note}" for note in history.notes], console)
    else:
        typer.echo(visible("\n\n".join([to_markdown(table), *(f"- {note}" for note in history.notes)])))
