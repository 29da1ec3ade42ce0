"""The command ``choose``: limits in, the fix to take out; registered on the application."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from precision_eval.cli.application import app, flowing, split

Names = list[str]

_CHOOSE_HELP = """Say which fix to take, from the records of a run: the answer first, then why and what would change it.

A fix is eligible where it runs and surely keeps every limit; what lies within noise of a limit is said to. Among these,
[bold]quality[/bold] takes the smallest drift, [bold]speed[/bold] the least time, and [bold]balanced[/bold] the smallest
log2(time) + log2(drift) / 13: a factor 2 in time for 13 bits of drift, the rate at which float32 → float16 trades them.
Whatever the measurement does not tell apart is called a tie, and both are named.

Memory is what is stored and what a call allocates on top. Speed is against full_float32; 1.2 is a fifth faster.
Exit code 1 where no fix keeps the limits.

[bold]Examples[/bold]

[cyan]precision-eval choose runs/first[/cyan]  one line per answer over everything measured

[cyan]precision-eval choose runs/first --case voice --max-drift 1e-3 --policy speed[/cyan]

[cyan]precision-eval choose runs/first --case voice --max-memory 0.6x --json[/cyan]

[cyan]precision-eval choose runs/first --case attention-decode --length 512 --sweep runs/sweep --policy speed[/cyan]
"""


class Policy(StrEnum):
    """What is preferred among the fixes that keep the limits."""

    quality = "quality"
    balanced = "balanced"
    speed = "speed"


@app.command(help=flowing(_CHOOSE_HELP))
def choose(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run; holds records.jsonl.")],
    policy: Annotated[Policy, typer.Option(help="quality, balanced or speed.")] = Policy.balanced,
    max_drift: Annotated[float | None, typer.Option(help="Largest relative error to float64, such as 1e-3.")] = None,
    max_memory: Annotated[
        str | None, typer.Option(help="Such as 2GiB or 800MiB; 0.6x is a ratio to full_float32's.")
    ] = None,
    min_speed: Annotated[float | None, typer.Option(help="Ratio to full_float32; above 1 is faster.")] = None,
    case: Annotated[Names, typer.Option(help="Names or globs.")] = ["*"],  # noqa: B006
    size: Annotated[Names, typer.Option(help="Names or globs.")] = ["*"],  # noqa: B006
    mode: Annotated[Names, typer.Option(help="eager, compiled; [dim]default: each on its own[/dim]")] = ["*"],  # noqa: B006
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:i or mps.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads that it was measured with.")] = None,
    length: Annotated[
        int | None, typer.Option(min=1, help="Positions of attention: the nearest size, or that place in the sweep.")
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Rows, those of guidance included.")] = None,
    sweep: Annotated[Path | None, typer.Option(help="Folder of `precision-eval sweep`: time at --length.")] = None,
    plan: Annotated[Path | None, typer.Option(help="File of `precision-eval plan --json`: memory from it.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print strict JSON: every figure the answer rests on.")
    ] = False,
) -> None:
    """Choose a fix."""
    from precision_eval.cli.choose import ChooseRequest, choose_command

    choose_command(
        ChooseRequest(
            run_dir=run_dir,
            policy=policy.value,
            max_drift=max_drift,
            max_memory=max_memory,
            min_speed=min_speed,
            cases=split(case),
            sizes=split(size),
            modes=split(mode),
            device=device,
            threads=threads,
            length=length,
            batch=batch,
            sweep=sweep,
            plan=plan,
            as_json=as_json,
        )
    )
