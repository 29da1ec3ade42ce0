"""The command ``choose``: limits in; out comes the fix to take, and why.

Conventions: the first line is the answer, and everything fits one screen. Exit code 0 with an answer or a tie, 1 where
for some case no fix keeps the limits or none cures it, 4 where a case's records cannot be compared; bad input is 2.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from precision_eval.cli import options
from precision_eval.cli.application import EXIT_COULD_NOT_TELL, EXIT_VERDICT, split
from precision_eval.cli.settings import CHOOSE, read_settings, set_option, settings_help
from precision_eval.core.files import to_json
from precision_eval.core.formatting import one_line
from precision_eval.core.table import print_lines, print_table

if TYPE_CHECKING:
    from precision_eval.results.choose import Answer

HELP = """\
A fix is eligible if it runs and certainly keeps every limit; a fix within noise of a limit is listed as near. Among
these, [bold]quality[/bold] takes the smallest drift, [bold]speed[/bold] the least time, and [bold]balanced[/bold] the
smallest log2(time) + log2(drift) / 13: a factor 2 in time for 13 bits of drift, the rate at which float32 → float16
trades them. Fixes that the measurement cannot distinguish are a tie, and all are named.

Memory is what is stored plus what a call allocates. Speed is relative to full_float32; 1.2 is a fifth faster.
The exit code is 1 if no fix keeps the limits.

[bold]Examples[/bold]

[cyan]precision-eval choose runs/first[/cyan]  one line per answer over everything measured

[cyan]precision-eval choose runs/first --case voice --max-drift 1e-3 --policy speed[/cyan]

[cyan]precision-eval choose runs/first --case voice --max-memory 0.6x --json[/cyan]

[cyan]precision-eval choose runs/first --case attention-decode --size 512 --policy speed[/cyan]
"""
HELP += settings_help(CHOOSE)


class Policy(StrEnum):
    quality = "quality"
    balanced = "balanced"
    speed = "speed"


MaxMemory = Annotated[
    str | None,
    typer.Option("--max-memory", "--fits", help="Such as 2GiB or 800MiB; 0.6x is a ratio to full_float32's."),
]
Settings = Annotated[list[str] | None, set_option(CHOOSE)]


def choose(
    run_dir: options.RunFolder,
    policy: Annotated[Policy, typer.Option(help="quality, balanced or speed.")] = Policy.balanced,
    max_drift: Annotated[float | None, typer.Option(help="Largest relative error to float64, such as 1e-3.")] = None,
    max_memory: MaxMemory = None,
    min_speed: Annotated[float | None, typer.Option(help="Ratio to full_float32; above 1 is faster.")] = None,
    case: options.Case = None,
    size: options.Size = None,
    mode: options.Mode = None,
    setting: Settings = None,
    as_json: options.Json = False,
) -> None:
    """Choose and print."""
    from precision_eval.results.choose import Question, answer, groups_of
    from precision_eval.results.choose.comparing import constraints_of
    from precision_eval.results.reading import load_run

    question = Question(
        constraints=constraints_of(max_drift=max_drift, max_memory=max_memory, min_speed=min_speed),
        policy=str(policy),
        cases=split(case, ("*",)),
        sizes=split(size, ("*",)),
        modes=split(mode, ("*",)),
        **read_settings(setting, CHOOSE),
    )
    run = load_run(run_dir)
    for line in run.damage:
        print(f"Not counted: {one_line(line)}", file=sys.stderr)
    reply = answer(groups_of(run.records, run=str(run_dir)), question)
    if as_json:
        print(to_json(reply.to_dict(), what="the answer", indent=1))
    else:
        _show(reply)
    if reply.refused:
        raise typer.Exit(EXIT_VERDICT)
    if not reply.found:
        raise typer.Exit(EXIT_COULD_NOT_TELL)


def _show(reply: Answer) -> None:
    from precision_eval.report.choice_text import choice_table, doubt_lines, headline, overview, tie_lines

    console = Console(emoji=False)
    running = [choice for choice in reply.choices if choice.group.curing] or list(reply.choices)
    if len(running) != 1 or reply.unanswered:
        print_table(overview(reply), console)
        print_lines(["One of them in full: --case NAME --size NAME --mode NAME"], console, style="dim")
        return
    choice = running[0]
    print_lines([headline(choice)], console, style="bold")
    print_lines([f"{choice.group.title}; policy {choice.policy}"], console, style="dim")
    print_table(choice_table(choice), console, compact=True)
    parts = {"tie": tie_lines(choice), "doubt": doubt_lines(choice), "note": choice.group.notes}
    print_lines([f"{name}: {line}" for name, lines in parts.items() for line in lines], console)
