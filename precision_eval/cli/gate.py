"""The command ``gate``: compare base and head, say what became worse, and end with a code that says so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from precision_eval.cli import options
from precision_eval.cli.application import EXIT_COULD_NOT_TELL, EXIT_DONE, EXIT_VERDICT, split
from precision_eval.cli.progress import bar_on
from precision_eval.core.errors import ParameterError
from precision_eval.core.targets import plugins
from precision_eval.core.workers import use_one_blas_thread
from precision_eval.fixes.catalog import ALL_FIXES

if TYPE_CHECKING:
    from precision_eval.gate import GateResult, Margins

EXIT_CODES = {"regression": EXIT_VERDICT, "could not tell": EXIT_COULD_NOT_TELL, "no regression": EXIT_DONE}

HELP = """\
With [cyan]--base[/cyan] and [cyan]--head[/cyan], commits of your repository or folders, both versions of a case are
imported by one process, on the same tensors, and timed in turn: a slowdown of two per cent is found in about a
minute for ten fixes. Your checkout is not touched.

With two names instead, stored results are compared: two folders that [cyan]run[/cyan] has filled, or two commits or
torch versions in asv's results. What the machine did between the two measurements is then part of every change.

Exit code 0: compared, and no worse. 1: worse. 2: input that cannot be compared. 4: could not tell, because figures are
undecided, missing, unlike or torn, or because nothing that is required was judged.

[bold]Examples[/bold]

[cyan]precision-eval gate --base main --head HEAD --case my_case.py:factory[/cyan]  your model as shipped

[cyan]precision-eval gate --base main --head . --case my_case.py:factory --candidate mine.py:fix[/cyan]  the folder as
it stands, and your own fix

[cyan]precision-eval gate --github --case my_case.py:factory[/cyan]  in a workflow [cyan]on: pull_request[/cyan]

[cyan]precision-eval gate runs/main runs/change --markdown summary.md[/cyan]  two run folders

[cyan]precision-eval gate 2.12.0 2.13.0 --results results/torch-versions[/cyan]  two torch versions
"""

_FIXES = ("as_shipped", "full_float32")

Stored = Annotated[str | None, typer.Argument(help="Stored results: a run folder, commit or torch version.")]
Base = Annotated[str | None, typer.Option("--base", help="What is known: a commit of this repository, or a folder.")]
Head = Annotated[str, typer.Option("--head", help="What is proposed, likewise; . is the folder as it stands.")]
Case = Annotated[
    list[str] | None, typer.Option("--case", help="Where your factory is written, in both sides, or a shipped case.")
]
Fix = Annotated[
    list[str] | None, typer.Option("--fix", help="Fixes, or none; [dim]default: as_shipped and full_float32[/dim]")
]
Candidates = Annotated[
    list[str] | None, typer.Option("--candidate", help="Your own fix, FILE:FUNCTION, as each side has it.")
]
Size = Annotated[str | None, typer.Option("--size", help="Size of a shipped case.")]
Processes = Annotated[
    int,
    typer.Option(
        "--processes",
        min=2,
        help="Processes, each with a seed of its own; what they leave undecided gets further ones.",
    ),
]
Budget = Annotated[float, typer.Option("--budget", min=0.1, help="Seconds of timing per fix, in all processes.")]
MarginLatency = Annotated[
    str | None,
    typer.Option(
        help="Relative change that counts as none; [dim]default: more than 0.5% alarms, less than 1% clears; of stored "
        "results 1%[/dim]"
    ),
]
MarginAnchor = Annotated[str, typer.Option(help="The same of stored ratios to the anchor, which the machine moves.")]
MarginDrift = Annotated[
    str | None, typer.Option(help="Factor that counts as none; [dim]default: 1.1, of stored results 1.2[/dim]")
]
MarginMemory = Annotated[str, typer.Option(help="Relative change that counts as none.")]
Require = Annotated[
    list[str],
    typer.Option(
        metavar="KINDS",
        help="What must have a verdict for exit code 0: status, latency, absolute-speed, drift, memory, or none; "
        "repeat or separate by commas.",
    ),
]
GitHub = Annotated[
    bool,
    typer.Option(
        "--github",
        help="In a workflow of a pull request: the base is its base, the summary goes to the job's page and into a "
        "comment (by gh, with GH_TOKEN), and where it could not tell it warns and ends with 0.",
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="With --github: where it could not tell it ends with 4.")]


def gate(
    stored_base: Stored = None,
    stored_head: Stored = None,
    base: Base = None,
    head: Head = "HEAD",
    case: Case = None,
    fix: Fix = None,
    candidate: Candidates = None,
    mode: options.Mode = None,
    size: Size = None,
    device: options.Device = "cpu",
    threads: options.Threads = 1,
    seed: options.Seed = 0,
    processes: Processes = 5,
    budget: Budget = 5.0,
    results: options.AsvResults = None,
    machine: options.Machine = None,
    margin_latency: MarginLatency = None,
    margin_anchor: MarginAnchor = "10%",
    margin_drift: MarginDrift = None,
    margin_memory: MarginMemory = "1%",
    require: Require = ["latency"],  # noqa: B006
    markdown: Annotated[Path | None, typer.Option(help="Also write the summary to this file.")] = None,
    github: GitHub = False,
    strict: Strict = False,
    as_json: options.Json = False,
) -> None:
    """Gate a change."""
    from precision_eval.gate import compare_sides, open_sides, to_json
    from precision_eval.gate import markdown as markdown_of

    base = _base_on_github(base, stored_base) if github else base
    margins = _margins(margin_latency, margin_drift, margin_memory, margin_anchor, paired=base is not None)
    required = tuple(kind for kind in split(require) if kind != "none")
    if base is not None:
        _check_paired(stored_base, case)
        fixes = _fixes(split(fix, _FIXES), split(candidate))
        effort = {"device": device, "threads": threads, "seed": seed, "processes": processes, "budget_s": budget}
        plan = {"cases": _cases(split(case)), "fixes": fixes, "modes": split(mode, ("eager",)), "size": size, **effort}
        outcome = _gate_trees(base, head, plan, margins, required)
    elif stored_base is None or stored_head is None:
        raise ParameterError("gate compares two sides; give --base with --case, or two run folders")
    else:
        sides = open_sides(stored_base, stored_head, results=results, machine=machine)
        outcome = compare_sides(*sides, margins=margins, required=required)
    summary = markdown_of(outcome)
    if markdown is not None:
        markdown.parent.mkdir(parents=True, exist_ok=True)
        markdown.write_text(summary, encoding="utf-8")
    sys.stdout.write(to_json(outcome) if as_json else summary)
    code = EXIT_CODES[outcome.outcome]
    raise typer.Exit(_told_github(summary, code, strict=strict) if github else code)


def _base_on_github(base: str | None, stored: str | None) -> str | None:
    """Return the base of the pull request that a workflow runs for, unless sides are named."""
    branch = os.environ.get("GITHUB_BASE_REF")
    if base is None and stored is None and not branch:
        raise ParameterError(
            "--github found no pull request, GITHUB_BASE_REF is not set; run it in a workflow `on: pull_request`, or "
            "give --base"
        )
    return f"origin/{branch}" if base is None and stored is None else base


def _told_github(summary: str, code: int, *, strict: bool) -> int:
    """Write the summary to the job's page and into a comment; returns the code for a workflow."""
    if page := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(page).open("a", encoding="utf-8") as file:
            file.write(summary)
    number = re.fullmatch(r"refs/pull/(\d+)/merge", os.environ.get("GITHUB_REF", ""))
    if number is not None:
        _comment(number[1], summary)
    if code != EXIT_COULD_NOT_TELL or strict:
        return code
    _warn_on_github(summary.partition("\n")[0].strip("*"))
    return EXIT_DONE


def _comment(number: str, summary: str) -> None:
    """Comment on a pull request, or edit the comment that is there; a fork's token may not."""
    command = ["gh", "pr", "comment", number, "--edit-last", "--create-if-none", "--body-file", "-"]
    try:
        subprocess.run(command, input=summary, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", None) or error
        _warn_on_github(f"the comment could not be written: {' '.join(str(reason).split())}")


def _warn_on_github(text: str) -> None:
    """Write what the page of the pull request shows as a warning."""
    print(f"::warning title=precision-eval gate::{text}", file=sys.stderr)


def _check_paired(stored: str | None, case: list[str] | None) -> None:
    if stored is not None:
        raise ParameterError(f"'{stored}' is given beside --base; give either --base and --head, or two stored results")
    if not case:
        raise ParameterError(
            "--case is missing; name what is compared: where your factory is written, such as my_case.py:factory, or "
            "a case that `precision-eval list cases` names"
        )


def _cases(names: tuple[str, ...]) -> tuple[str, ...]:
    own = plugins("precision_eval.cases")
    return tuple(own.get(name, name) for name in names)


def _fixes(names: tuple[str, ...], candidates: tuple[str, ...]) -> tuple[str, ...]:
    """Return shipped fixes that are named, and after them where candidates are written."""
    from precision_eval.run.plan import matching

    own = plugins("precision_eval.fixes")
    shipped = tuple(name for name in names if name not in own and name != "none")
    chosen = matching("fix", shipped, [fix.id for fix in ALL_FIXES])
    return (*chosen, *(own[name] for name in names if name in own), *(own.get(name, name) for name in candidates))


def _gate_trees(base: str, head: str, plan: dict[str, Any], margins: Margins, required: tuple[str, ...]) -> GateResult:
    use_one_blas_thread()
    from precision_eval.gate.measuring import GatePlan, gate_trees
    from precision_eval.run.plan import MODES, checked_device, matching

    plan |= {"modes": matching("mode", plan["modes"], MODES), "device": checked_device(plan["device"])}
    with bar_on() as show:
        progress = partial(show, 0.0, None)
        return gate_trees(base, head, GatePlan(**plan), margins=margins, required=required, progress=progress)


def _margins(latency: str | None, drift: str | None, memory: str, anchor: str, *, paired: bool) -> Margins:
    from precision_eval.gate import PAIRED_MARGINS, Margins

    usual = PAIRED_MARGINS if paired else Margins()
    return Margins(
        drift=usual.drift if drift is None else _number("--margin-drift", drift),
        latency=usual.latency if latency is None else _fraction("--margin-latency", latency),
        clear=usual.clear if latency is None else None,
        memory=_fraction("--margin-memory", memory),
        anchor=_fraction("--margin-anchor", anchor),
    )


def _fraction(name: str, text: str) -> float:
    """Read ``1%`` or ``0.01``."""
    number = text.strip()
    if number.endswith("%"):
        return _number(name, number[:-1], given=text) / 100.0
    return _number(name, number, given=text)


def _number(name: str, text: str, *, given: str | None = None) -> float:
    try:
        return float(text.strip().removeprefix("×").removeprefix("x"))
    except ValueError as error:
        raise ParameterError(f"{name} is '{given or text}'; expected a number such as 1% or 1.2") from error
