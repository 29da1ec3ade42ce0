"""What is done around the package and not shipped with it: ``python -m tools``.

Environments and asv runs per torch version, asv's page offline, and the blocks of README and docs
that results fill.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from precision_eval.cli.application import flowing, run_application, split
from tools.torch_versions.publish import asv_page_command

app = typer.Typer(
    name="tools",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Environments per torch version, asv's page offline, and blocks of README and docs.",
)

_SWEEP_HELP = """Run the asv benchmarks under each torch version: an environment per version, then asv in it.

Disk is stated first, and a sweep that would not fit is refused. A version that cannot be installed is named and the
others go on. What is measured stays: the same command goes on where it was stopped, and versions with a result for
every benchmark are skipped. On Linux say which build of torch to take: a CPU build from an index named in
PRECISION_EVAL_TORCH_INDEX, or [cyan]slim[/cyan], the CUDA wheel without CUDA's libraries.

Latencies come last and in rounds, the versions in turn, so that what the machine does from one hour to the next is
among a version's samples and is not taken for a change of torch.

Exit code 1 where a benchmark failed, 2 where a version could not be installed.

[bold]Examples[/bold]

[cyan]python -m tools torch-sweep --plan --torch-build slim[/cyan]  what it would install, and how much disk that takes

[cyan]python -m tools torch-sweep --torch-build slim[/cyan]  every version of asv.versions.json

[cyan]python -m tools torch-sweep --versions 2.6.0,2.8 --bench 'eager.*track_(status|drift)' --results runs/two[/cyan]
"""

Names = list[str]


@app.command(name="torch-sweep", help=flowing(_SWEEP_HELP))
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
    from tools.torch_versions.sweep import plan_sweep, torch_sweep_command

    sweep = plan_sweep(
        config,
        versions=split(versions or []),
        bench=bench or (),
        results=results,
        environments=environments,
        torch_build=torch_build,
        keep=keep,
        commit=commit,
        machine=machine,
        attributes=attribute or (),
        rounds=rounds,
    )
    torch_sweep_command(sweep, plan_only=plan)


@app.command(name="test-matrix")
def matrix(
    combinations: Annotated[
        list[str] | None, typer.Argument(metavar="PYTHON/TORCH", help="Such as 3.12/2.13.0.")
    ] = None,
    environments: Annotated[Path, typer.Option(help="Folder of the environments.")] = Path(".asv/torch"),
    torch_build: Annotated[str, typer.Option(help="auto, cpu, slim or cuda.")] = "auto",
    pytest: Annotated[str, typer.Option(help="Arguments of pytest, such as '-n 2 tests/audio_metrics'.")] = "-n auto",
) -> None:
    """Run the tests under several Pythons and torch versions; exit code 1 where a test failed."""
    from tools.torch_versions.matrix import COMBINATIONS, run_tests

    arguments = shlex.split(pytest)
    if not run_tests(combinations or COMBINATIONS, base=environments, torch_build=torch_build, pytest=arguments):
        raise typer.Exit(1)


_PAGE_HELP = """Publish asv's page so that it works without a network, with the torch version as its x axis.

[cyan]--results[/cyan] takes one commit's results under many torch versions, as `make asv-versions` leaves them. Each
version becomes a tagged commit of a throw-away repository, dated as torch was released; asv then draws every metric
against torch versions, and `asv compare v2.13.0 v2.15.0` works in the folder that is written.

[cyan]--html[/cyan] takes a page that `asv publish` wrote, of commits or anything else, and only puts the scripts beside
it that it loads from content networks.

asv's page reads its data through a web server, so open it through one; Python's own is enough:
[cyan]python -m http.server --directory site/html[/cyan], or `asv preview` in the folder.

[bold]Examples[/bold]

[cyan]python -m tools asv-page --results results/torch-versions --out site[/cyan]

[cyan]python -m tools asv-page --html .asv/html[/cyan]  in place
"""


app.command(name="asv-page", help=flowing(_PAGE_HELP))(asv_page_command)


@app.command(
    name="docs",
    help=(
        "Write the blocks of docs/ that results fill.\n\n"
        "[bold]Example[/bold]\n\n[cyan]python -m tools docs docs/results.md --results results[/cyan]"
    ),
)
def docs(
    pages: Annotated[list[Path] | None, typer.Argument(help="Pages with markers; [dim]default: all[/dim]")] = None,
    results: Annotated[Path, typer.Option(help="Folder of results.")] = Path("results"),
) -> None:
    """Write the blocks."""
    from tools.docs.pages import PAGES, write_docs

    write_docs(pages or [Path("docs") / name for name in PAGES], results)


if __name__ == "__main__":
    run_application(app, "tools")
