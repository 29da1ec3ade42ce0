"""The command ``sensitivity``: map, search and prove what is missing, then write tables and figures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from precision_eval.cli import options
from precision_eval.cli.application import MODEL, app, flowing, split
from precision_eval.cli.exit_codes import EXIT_INTERRUPTED
from precision_eval.core.files import check_own_folder

if TYPE_CHECKING:
    from rich.console import Console

    from precision_eval.core.table import Table
    from precision_eval.studies.sensitivity.campaign import SensitivityPlan

CSV_NAME = "sensitivity.csv"
TEXT_NAME = "sensitivity.md"
SITES_SHOWN = 10

_HELP = """Map which layers and roles carry the drift, and find a mixed policy that beats every uniform fix.

Each site (a layer's q, k, v, scores, softmax, output, cache, positions, norm, mlp, ...) is dropped to half alone, and
held in float32 alone, on the same inputs; the drift to float64 is ranked, with intervals over inputs. Policies are
searched along that map on one half of the inputs, really executed, and held on the other half against every uniform
fix, drift and paired latency. That none wins is a result too.

Runs are appended to OUT/runs.jsonl; the same command goes on from there.

[bold]Examples[/bold]

[cyan]precision-eval sensitivity --out runs/sensitivity[/cyan]  the voice, and transformers' T5 and Dia

[cyan]precision-eval sensitivity --target voice --format bfloat16 --no-policies --out runs/voice-map[/cyan]

[cyan]precision-eval sensitivity --report-only --out results/sensitivity[/cyan]
"""


@app.command(help=flowing(_HELP), rich_help_panel=MODEL)
def sensitivity(
    out: options.Out = Path("runs/sensitivity"),
    target: Annotated[
        list[str] | None, typer.Option(help="voice, t5-encoder, dia-encoder, dia-decoder, attention-decode.")
    ] = None,
    format_: Annotated[list[str] | None, typer.Option("--format", help="bfloat16, float16.")] = None,
    size: Annotated[str, typer.Option(help="tiny or cpu.")] = "cpu",
    seed: options.Seed = 0,
    policies: Annotated[bool, typer.Option("--policies/--no-policies", help="Also search and prove policies.")] = True,
    processes: options.Processes = 6,
    budget: options.Budget = 1.5,
    report_only: options.ReportOnly = False,
) -> None:
    """Map sensitivities."""
    from precision_eval.studies.sensitivity.campaign import SensitivityPlan

    given: dict[str, Any] = {"targets": split(target), "formats": split(format_)}
    plan = SensitivityPlan(
        size=size,
        seed=seed,
        policies=policies,
        processes=processes or 6,
        budget_s=budget or 1.5,
        **{name: values for name, values in given.items() if values},
    )
    run_sensitivity(plan, out, report_only=report_only)


def run_sensitivity(plan: SensitivityPlan, out: Path, *, report_only: bool = False) -> None:
    """Run, print, draw and write."""
    from rich.console import Console

    check_own_folder(out, "runs.jsonl")
    plan.checked()  # bad names end here, before anything heavy is loaded
    console = Console(emoji=False)
    if not report_only:
        try:
            _run(plan, out, console)
        except KeyboardInterrupt:
            console.print("Stopped. Runs that were finished are kept; the same command goes on from there.")
            sys.exit(EXIT_INTERRUPTED)
    _report(out, console)


def _run(plan: SensitivityPlan, out: Path, console: Console) -> None:
    """Run under a bar that is redrawn between runs only: nothing observes while timing."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from precision_eval.studies.sensitivity.campaign import run_campaign

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, auto_refresh=False, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=None)

        def show(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what[:60], refresh=True)

        run_campaign(plan, out, progress=show)


def _report(out: Path, console: Console) -> None:
    """Write tables and figures from the runs alone."""
    from precision_eval.core.files import worked_out_from
    from precision_eval.core.formatting import one_line, visible
    from precision_eval.core.table import print_table
    from precision_eval.studies.sensitivity.campaign import write_summary
    from precision_eval.studies.sensitivity.report import answer, csv_text, draw, markdown

    with worked_out_from(out, remedy="remove the lines that were edited, or run into a new --out"):
        summary = write_summary(out)
        (out / CSV_NAME).write_text(csv_text(summary), encoding="utf-8")
        (out / TEXT_NAME).write_text(visible(markdown(summary)) + "\n", encoding="utf-8")
        drawn = draw(summary, out / "figures")
        tables, lines = [_table(sensitivity_map) for sensitivity_map in summary["maps"]], answer(summary)
    for table in tables:
        print_table(table, console)
    for line in lines:
        console.print(one_line(line), style="bold", highlight=False, markup=False)
    written = [out / TEXT_NAME, out / CSV_NAME, *drawn]
    console.print(f"written: {', '.join(str(path) for path in written)}", style="dim", highlight=False)


def _table(one: dict[str, Any]) -> Table:
    """Return the first ranks of a map."""
    from precision_eval.core.table import make_table
    from precision_eval.studies.sensitivity.report import number, percent

    rows = []
    for effect in [effect for effect in one["effects"] if effect["kind"] == "site"][:SITES_SHOWN]:
        rank = f"{effect['rank']}{' =' if effect['tied_with_next'] else ''}"
        interval = f"{number(effect['added_low'])} … {number(effect['added_high'])}"
        rows.append((rank, effect["name"], number(effect["added"]), interval, percent(effect["carried"])))
    title = f"{one['target']} · {one['size']} · {one['format']} · uniform {number(one['uniform_drift'])}"
    return make_table(("rank", "site", "added alone", "95 %", "carried"), rows, title=title, align="rlrrr")
