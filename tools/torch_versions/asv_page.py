"""What ``asv-page`` does: publish results over torch versions, or take a published page offline."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from precision_eval.core.errors import ParameterError

DEFAULT_OUT = Path("site")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the command line asks for."""

    results: Path | None = None
    html: Path | None = None
    out: Path | None = None
    machine: str | None = None
    commit: str | None = None
    build: str | None = None
    environment: str | None = None


def asv_page_command(request: Request) -> None:
    """Write the page and say how to open it."""
    from precision_eval.studies.versions.upstream import load_upstream
    from tools.torch_versions.publish import copy_offline, publish
    from tools.torch_versions.publish_rekey import Choice

    chosen = {name: getattr(request, name) for name in ("machine", "commit", "build", "environment")}
    if (request.results is None) == (request.html is None):
        raise ParameterError("give either --results (asv's results_dir) or --html (what `asv publish` wrote)")
    console = Console()
    if request.html is not None:
        given = [f"--{name}" for name, value in chosen.items() if value is not None]
        if given:
            raise ParameterError(f"{', '.join(given)} chooses among results; give --results, or leave it away")
        published = copy_offline(request.html, request.out)
    else:
        assert request.results is not None
        releases = load_upstream().releases
        dates = {version: one.date for version, one in releases.items() if one.date is not None}
        published = publish(request.results, request.out or DEFAULT_OUT, dates=dates, choice=Choice(**chosen))
        console.print(f"x axis: torch {', '.join(published.versions)}", highlight=False)
    for note in published.notes:
        console.print(f"note: {note}", style="yellow", highlight=False, markup=False)
    scripts = f"{len(published.scripts)} scripts and style sheets put beside it" if published.scripts else "as it was"
    console.print(f"{published.html}: loads nothing from another host ({scripts})", highlight=False, markup=False)
    console.print(f"open it: python -m http.server --directory {published.html}", highlight=False, markup=False)
    if len(published.versions) > 1:
        ends = f"v{published.versions[0]} v{published.versions[-1]}"
        console.print(
            f"compare: cd {published.html.parent} && asv compare {ends}", highlight=False, markup=False, soft_wrap=True
        )
