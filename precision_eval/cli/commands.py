"""Every command, in the order of ``--help``; a command's module is imported when it is called."""

from __future__ import annotations

import importlib
from itertools import groupby
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from precision_eval.cli.application import EXIT_CODES_HELP, flowing, run_application
from precision_eval.core.errors import UnknownNameError
from precision_eval.core.removed import removal_message

MODEL, TRACK, AUDIO, MAINTAIN = "Your model", "Track changes", "Audio", "Maintain"

COMMANDS = {
    "init": (
        MODEL,
        "precision_eval.cli.own_model:init",
        "Write a commented case file, a pytest file, asv's two files and a CI workflow into your repository.",
    ),
    "run": (MODEL, "precision_eval.cli.run:run", "Measure fixes on cases, record the results, and write the report."),
    "report": (
        MODEL,
        "precision_eval.cli.report:report",
        "Print the answer of a run, and write figures, results.csv, report.md and report.html from the records alone.",
    ),
    "choose": (
        MODEL,
        "precision_eval.cli.choose:choose",
        "Name the fix to take, from the records of a run, and why not the others.",
    ),
    "doctor": (
        MODEL,
        "precision_eval.cli.examine:doctor",
        "Find where dtypes split in your model, what brought each dtype there, and which fix cures it.",
    ),
    "explain": (
        MODEL,
        "precision_eval.cli.own_model:explain",
        "Explain a dtype error: the operation, the dtypes, the likely cause, the fixes that apply.",
    ),
    "compare": (
        MODEL,
        "precision_eval.cli.own_model:compare",
        "Compare your own calls: paired latency, memory, and drift to a float64 copy of the first.",
    ),
    "plan": (
        MODEL,
        "precision_eval.cli.plan:plan",
        "Add up the memory that a model needs under each fix, and the largest length that fits.",
    ),
    "modules": (
        MODEL,
        "precision_eval.cli.modules:modules",
        "Find which modules may run in half precision, and write a policy in plain PyTorch.",
    ),
    "gate": (
        TRACK,
        "precision_eval.cli.gate:gate",
        "Compare a change with its base, and fail if it is worse by more than a margin.",
    ),
    "versions": (
        TRACK,
        "precision_eval.cli.versions:versions",
        "Show what torch releases changed: status, drift, latency and memory of each fix, version by version.",
    ),
    "audio": (
        AUDIO,
        "precision_eval.cli.audio:audio",
        "Compare a recording with its aligned reference, second by second; inspect one; or compare two folders.",
    ),
    "list": (
        MAINTAIN,
        "precision_eval.cli.listing:list_",
        "Explain the fixes, cases, devices or measures, each with its source.",
    ),
}
"""Name: group in ``--help``, function, and summary; the rest of its help is HELP, or HELP_OF_NAME, of its module."""


def command_named(name: str) -> Any:
    _, target, summary = COMMANDS[name]
    module_name, _, function = target.partition(":")
    module = importlib.import_module(module_name)
    text = getattr(module, f"HELP_OF_{name.upper()}", None) or getattr(module, "HELP", "")
    alone = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
    alone.command(name=name, cls=CommandWithoutRemoved, help=flowing(f"{summary}\n\n{text}".strip()))(
        getattr(module, function)
    )
    return typer.main.get_command(alone)


class CommandWithoutRemoved(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        existing = {name for option in self.params for name in option.opts}
        for word in args[: args.index("--")] if "--" in args else args:
            option = word.partition("=")[0]
            message = removal_message("option", f"{self.name} {option}")
            if message and option not in existing:
                raise UnknownNameError(message)
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line, without hidden arguments, which click would show."""
        hidden = {
            word for param in self.params if getattr(param, "hidden", False) for word in param.get_usage_pieces(ctx)
        }
        return [word for word in super().collect_usage_pieces(ctx) if word not in hidden]


class LazyGroup(TyperGroup):
    """The commands of the table. Its own help is plain text from the table alone, as loading rich takes longer."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"commands": dict.fromkeys(COMMANDS)})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; None where there is none of that name."""
        if cmd_name in COMMANDS:
            return command_named(cmd_name)
        if message := removal_message("command", cmd_name):
            raise UnknownNameError(message)
        return None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        self.format_options(ctx, formatter)
        self.format_epilog(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for group, names in groupby(COMMANDS, key=lambda name: COMMANDS[name][0]):
            with formatter.section(group):
                formatter.write_dl([(name, COMMANDS[name][2]) for name in names])


app = typer.Typer(
    name="precision-eval",
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help=(
        "Which fix for 'Expected query, key, and value to have the same dtype' should I ship, "
        "and what does it cost in latency, memory, numeric drift and sound?\n\n"
        "Begin with `precision-eval run --out runs/first`: on two cores it takes about a minute and ends "
        "with a report. `precision-eval list fixes` lists what is compared."
    ),
    epilog=EXIT_CODES_HELP,
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"precision-eval {version('precision-eval')}")
        raise typer.Exit


@app.callback()
def _global_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Hold the options that come before a command."""


def main() -> None:
    run_application(app, "precision-eval")
