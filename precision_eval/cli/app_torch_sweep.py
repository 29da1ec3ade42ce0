"""The command ``torch-sweep``, registered on the application; it imports what it needs when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .application import app, flowing, split

_HELP = """Run the asv benchmarks under each torch version: an environment per version, then asv in it.

Disk is stated first, and a sweep that would not fit is refused. A version that cannot be installed is named and the
others go on. What is measured stays: the same command goes on where it was stopped, and versions with a result for
every benchmark are skipped. On Linux say which build of torch to take: a CPU build from an index named in
PRECISION_EVAL_TORCH_INDEX, or [cyan]slim[/cyan], the CUDA wheel without CUDA's libraries.

Latencies come last and in rounds, the versions in turn, so that what the machine does from one hour to the next is
among a version's samples and is not taken for a change of torch.

Exit code 1 where a benchmark failed, 2 where a version could not be installed.

[bold]Examples[/bold]

[cyan]precision-eval torch-sweep --plan --torch-build slim[/cyan]  what it would install, and how much disk that takes

[cyan]precision-eval torch-sweep --torch-build slim[/cyan]  every version of asv.versions.json

[cyan]precision-eval torch-sweep --versions 2.6.0,2.8 --bench 'eager.*track_(status|drift)' --results runs/two[/cyan]
"""

Names = list[str]


@app.command(name="torch-sweep", help=flowing(_HELP))
def torch_sweep(
    versions: Annotated[
        Names | None, typer.Option(help="Such as 2.6.0,2.8; [dim]default: those of the configuration[/dim]")
    ] = None,
    bench: Annotated[Names | None, typer.Option(metavar="REGEX", help="Only benchmarks whose name it finds.")] = None,
    results: Annotated[Path | None, typer.Option(help="Folder of asv's results.")] = None,
    environments: Annotated[Path | None, typer.Option(help="Folder of the environments.")] = None,
    torch_build: Annotated[str, typer.Option(help="auto, cpu, slim or cuda.")] = "auto",
    keep: Annotated[
        bool,
        typer.Option(
            "--keep-environments/--remove-environments", help="Removed ones leave nothing in uv's cache either."
        ),
    ] = True,
    commit: Annotated[str, typer.Option(help="Revision whose packages are installed.")] = "HEAD",
    machine: Annotated[str | None, typer.Option(help="asv's name for this machine.")] = None,
    attribute: Annotated[
        Names | None, typer.Option(metavar="NAME=VALUE", help="Overrides one of asv's, such as rounds=1.")
    ] = None,
    config: Annotated[Path, typer.Option(help="asv's configuration.")] = Path("asv.versions.json"),
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Visits to each version for the latencies, a process each; 1 measures all of a version's processes in "
            "one go. [dim]default: 3, or 1 with --remove-environments[/dim]",
        ),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Install and measure nothing; print what would be.")] = False,
) -> None:
    """Sweep torch versions."""
    from .torch_sweep import Request, torch_sweep_command

    torch_sweep_command(
        Request(
            config=config,
            versions=split(versions or []),
            bench=tuple(bench or ()),
            results=results,
            environments=environments,
            torch_build=torch_build,
            keep=keep,
            commit=commit,
            machine=machine,
            attributes=tuple(attribute or ()),
            plan_only=plan,
            rounds=rounds,
        )
    )
