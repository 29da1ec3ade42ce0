"""The command ``gate``: compare base and head, say what became worse, and end with a code that says so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from precision_eval.cli import options
from precision_eval.cli.application import EXIT_COULD_NOT_TELL, EXIT_DONE, EXIT_VERDICT, split
from precision_eval.cli.progress import bar_on
from precision_eval.cli.settings import GATE, read_settings, set_option, settings_help
from precision_eval.core.errors import ParameterError
from precision_eval.core.targets import plugins
from precision_eval.core.workers import use_one_blas_thread
from precision_eval.fixes.catalog import ALL_FIXES

if TYPE_CHECKING:
    from precision_eval.gate.result import GatePlan, GateResult, Margins

EXIT_CODES = {"regression": EXIT_VERDICT, "could not tell": EXIT_COULD_NOT_TELL, "no regression": EXIT_DONE}

HELP = """\
One process imports both versions of a case, runs them on the same tensors and times them in turn. It detects a
slowdown of two percent in about a minute for ten fixes. Your checkout is not touched. A case whose code is the same on
both sides is not timed.

Exit code 0: compared, and no worse. 1: worse. 2: input that cannot be compared. 4: could not tell.

[bold]Examples[/bold]

[cyan]precision-eval gate --base main --head HEAD --case my_case.py:factory[/cyan]  your model as shipped

[cyan]precision-eval gate --base main --head . --case my_case.py:factory --candidate mine.py:fix[/cyan]  the folder with
its changes, and your own fix

[cyan]precision-eval gate --github --case my_case.py:factory[/cyan]  in a workflow [cyan]on: pull_request[/cyan]
"""
HELP += settings_help(GATE)

_FIXES = ("as_shipped", "full_float32")

Base = Annotated[str | None, typer.Option("--base", help="A commit of this repository, or a folder.")]
Head = Annotated[str, typer.Option("--head", help="The proposed commit or folder; . is this folder with its changes.")]
Case = Annotated[
    list[str] | None, typer.Option("--case", help="Your factory, which both sides contain, or a shipped case.")
]
Fix = Annotated[
    list[str] | None, typer.Option("--fix", help="Fixes, or none; [dim]default: as_shipped and full_float32[/dim]")
]
Candidates = Annotated[
    list[str] | None, typer.Option("--candidate", help="Your own fix, FILE:FUNCTION, as each side defines it.")
]
Settings = Annotated[list[str] | None, set_option(GATE)]
Markdown = Annotated[Path | None, typer.Option(help="Also write the summary to this file.")]
GitHub = Annotated[
    bool,
    typer.Option(
        "--github",
        help="For the workflow of a pull request: takes its base, writes the summary to the job's page and a comment "
        "(by gh, with GH_TOKEN), and if it cannot tell, warns and exits with 0.",
    ),
]


def gate(
    stored: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    base: Base = None,
    head: Head = "HEAD",
    case: Case = None,
    fix: Fix = None,
    candidate: Candidates = None,
    markdown: Markdown = None,
    github: GitHub = False,
    setting: Settings = None,
    as_json: options.Json = False,
) -> None:
    """Gate a change."""
    use_one_blas_thread()
    from precision_eval.core.errors import matching
    from precision_eval.gate.result import GatePlan
    from precision_eval.run.plan import MODES, checked_device

    base = _check_sides(stored, base or (_base_on_github() if github else None), case)
    settings = read_settings(setting, GATE)
    plan = GatePlan(
        cases=tuple(plugins("precision_eval.cases").get(name, name) for name in split(case)),
        fixes=_fixes(split(fix, _FIXES), split(candidate)),
        modes=matching("mode", settings["mode"], MODES),
        device=checked_device(settings["device"]),
        are_defaults=not fix and not candidate,
        budget_s=settings["budget"],
        **{name: settings[name] for name in ("size", "threads", "seed", "processes")},
    )
    result = _measure(base, head, plan, _margins(settings), settings["require"])
    summary = _write(result, markdown, as_json=as_json)
    code = EXIT_CODES[result.outcome]
    raise typer.Exit(_publish_on_github(summary, code) if github else code)


def _check_sides(stored: list[str] | None, base: str | None, case: list[str] | None) -> str:
    """Return the base, or refuse what compares no two sides of a case."""
    if stored:
        raise ParameterError(
            "the gate of stored results was removed in 1.0; give --base and --head, or compare two run folders by "
            "`precision-eval report RUN RUN`"
        )
    if base is None or not case:
        raise ParameterError(
            "gate compares two sides of a case; give --base, such as main, and --case, where your factory is written, "
            "such as my_case.py:factory, or a case that `precision-eval list cases` names"
        )
    return base


def _measure(base: str, head: str, plan: GatePlan, margins: Margins, required: tuple[str, ...]) -> GateResult:
    from precision_eval.gate.measuring import gate_trees

    with bar_on() as show:
        return gate_trees(base, head, plan, margins=margins, required=required, progress=partial(show, 0.0, None))


def _write(result: GateResult, markdown: Path | None, *, as_json: bool) -> str:
    """Print the result, and return the Markdown of it, which goes to a file where one is named."""
    from precision_eval.gate.summary import to_json, to_text

    summary = to_text(result, folded=True)
    if markdown is not None:
        markdown.parent.mkdir(parents=True, exist_ok=True)
        markdown.write_text(summary, encoding="utf-8")
    sys.stdout.write(to_json(result) if as_json else to_text(result, folded=False))
    return summary


def _fixes(names: tuple[str, ...], candidates: tuple[str, ...]) -> tuple[str, ...]:
    """Return shipped fixes that are named, and after them where plugins and candidates are written."""
    from precision_eval.core.errors import matching

    places = plugins("precision_eval.fixes")
    shipped = tuple(name for name in names if name not in places and name != "none")
    chosen = matching("fix", shipped, [fix.id for fix in ALL_FIXES])
    named = (*(name for name in names if name in places), *candidates)
    return (*chosen, *(places.get(name, name) for name in named))


def _margins(settings: Mapping[str, Any]) -> Margins:
    from precision_eval.gate.result import Margins

    latency = settings["margin_latency"]
    exact = {"drift": settings["margin_drift"], "memory": settings["margin_memory"]}
    return Margins(**exact) if latency is None else Margins(**exact, latency=latency, clear=None)


def _base_on_github() -> str:
    """Return the base of the pull request that a workflow runs for."""
    branch = os.environ.get("GITHUB_BASE_REF")
    if not branch:
        raise ParameterError(
            "--github needs a pull request, and GITHUB_BASE_REF is not set; run it in a workflow `on: pull_request`, "
            "or give --base"
        )
    return f"origin/{branch}"


def _publish_on_github(summary: str, code: int) -> int:
    """Write the summary to the job's page and into a comment; returns the code for a workflow."""
    if page := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(page).open("a", encoding="utf-8") as file:
            file.write(summary)
    number = re.fullmatch(r"refs/pull/(\d+)/merge", os.environ.get("GITHUB_REF", ""))
    if number is not None:
        _comment(number[1], summary)
    if code != EXIT_COULD_NOT_TELL:
        return code
    _warn(summary.partition("\n")[0].strip("*"))
    return EXIT_DONE


def _comment(number: str, summary: str) -> None:
    """Comment on a pull request, or edit the comment that is there; a fork's token may not."""
    command = ["gh", "pr", "comment", number, "--edit-last", "--create-if-none", "--body-file", "-"]
    try:
        subprocess.run(command, input=summary, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", None) or error
        _warn(f"the comment could not be written: {' '.join(str(reason).split())}")


def _warn(text: str) -> None:
    """Write what the page of the pull request shows as a warning."""
    print(f"::warning title=precision-eval gate::{text}", file=sys.stderr)
