"""Trials of the instrument beside its rivals: ``python -m validation``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from precision_eval.cli import run_application
from precision_eval.cli.application import flowing, split

app = typer.Typer(
    name="validation",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help=(
        "How far the measuring can be trusted: error rates beside other tools, planted faults, and what the "
        "suite claims."
    ),
)

_PROVE_HELP = """Measure how far the measuring can be trusted: error rates, beside other tools on the same trials.

False alarms, power and coverage of the latency verdicts, beside asv, pytest-benchmark and torch.utils.benchmark;
planted numeric faults and honest variations, beside FlashAttention's rule and assert_close; tensors of known size;
what measuring costs; first divergence and its prediction; faults injected into a run.

Trials are appended to OUT/NAME.jsonl as they finish; the same command goes on from there. [cyan]quick[/cyan] takes
about ten minutes, [cyan]full[/cyan] some hours on two cores, most of them for [cyan]latency[/cyan], which wants a
machine that does nothing else.

[bold]Examples[/bold]

[cyan]python -m validation prove[/cyan]  every experiment at reduced size, into runs/proof

[cyan]python -m validation prove faults memory --size full --out runs/full[/cyan]

[cyan]python -m validation prove --report --out results/proof[/cyan]  print and draw what is there
"""


class ProofSize(StrEnum):
    """How many trials ``prove`` runs."""

    quick = "quick"
    full = "full"


@app.command(help=flowing(_PROVE_HELP))
def prove(
    experiments: Annotated[
        list[str] | None, typer.Argument(metavar="[EXPERIMENT]...", help="Names; [dim]default: all[/dim]")
    ] = None,
    size: Annotated[ProofSize, typer.Option(help="quick or full.")] = ProofSize.quick,
    out: Annotated[Path, typer.Option(help="Folder of trials, figures and plots.")] = Path("runs/proof"),
    report: Annotated[
        bool, typer.Option("--report", help="Run nothing; print and draw the trials that are there.")
    ] = False,
) -> None:
    """Prove the measuring."""
    from validation.prove import Request, prove_command

    prove_command(Request(names=tuple(split(experiments or [])), size=size.value, out=out, report_only=report))


@app.command(
    help=(
        "Measure what the suite claims of itself, on this machine: speed of --help, cost of applying a fix, "
        "repeatability, speed and memory of long synthesis.\n\n"
        "[bold]Example[/bold]\n\n[cyan]python -m validation claims --minutes 60[/cyan]"
    )
)
def claims(
    minutes: Annotated[float, typer.Option(min=1.0, help="Length of the long synthesis.")] = 60.0,
    budget: Annotated[float, typer.Option(min=0.5, help="Seconds of timing per pair.")] = 10.0,
    out: Annotated[Path | None, typer.Option(help="Also write the figures to this JSON file.")] = None,
) -> None:
    """Print every claim, its target and what was found."""
    from validation.claims_text import show_claims

    show_claims(minutes=minutes, budget_s=budget, out=out)


if __name__ == "__main__":
    run_application(app, "validation")
