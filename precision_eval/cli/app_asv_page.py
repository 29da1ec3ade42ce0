"""The command ``asv-page``: asv's page offline, over torch versions; registered on the application."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .application import app, flowing

_HELP = """Publish asv's page so that it works without a network, with the torch version as its x axis.

[cyan]--results[/cyan] takes one commit's results under many torch versions, as `make asv-versions` leaves them. Each
version becomes a tagged commit of a throw-away repository, dated as torch was released; asv then draws every metric
against torch versions, and `asv compare v2.13.0 v2.15.0` works in the folder that is written.

[cyan]--html[/cyan] takes a page that `asv publish` wrote, of commits or anything else, and only puts the scripts beside
it that it loads from content networks.

asv's page reads its data through a web server, so open it through one; Python's own is enough:
[cyan]python -m http.server --directory site/html[/cyan], or `asv preview` in the folder.

[bold]Examples[/bold]

[cyan]precision-eval asv-page --results results/torch-versions --out site[/cyan]

[cyan]precision-eval asv-page --html .asv/html[/cyan]  in place
"""


class Build(StrEnum):
    """Kind of build of torch."""

    cpu = "cpu"
    cuda = "cuda"


@app.command(name="asv-page", help=flowing(_HELP))
def asv_page(
    results: Annotated[
        Path | None, typer.Option(metavar="DIR", help="asv's results_dir: one commit, many torch versions.")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="DIR", help="What `asv publish` wrote: its html_dir.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to; [dim]default: site for --results, in place for --html[/dim]"),
    ] = None,
    machine: Annotated[str | None, typer.Option(help="Take this machine's results.")] = None,
    commit: Annotated[
        str | None, typer.Option(help="Take this commit's; [cyan]newest[/cyan]: the newest of each version.")
    ] = None,
    build: Annotated[Build | None, typer.Option(help="Take builds of this kind: cpu or cuda.")] = None,
    environment: Annotated[str | None, typer.Option(metavar="GLOB", help="Take these environments of asv.")] = None,
) -> None:
    """Publish offline."""
    from .asv_page import Request, asv_page_command

    asv_page_command(
        Request(
            results=results,
            html=html,
            out=out,
            machine=machine,
            commit=commit,
            build=None if build is None else build.value,
            environment=environment,
        )
    )
