"""The command-line application itself, and what every command on it uses; the commands register from other modules."""

from __future__ import annotations

import typer

from precision_eval.cli import EXIT_CODES_HELP

app = typer.Typer(
    name="precision-eval",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help=(
        "Which fix for [bold]Expected query, key, and value to have the same dtype[/bold] should I ship, "
        "and what does it cost in latency, memory, numeric drift and sound?\n\n"
        "Begin with [cyan]precision-eval run --out runs/first[/cyan]: on a laptop it takes about two minutes and ends "
        "with a report. [cyan]precision-eval list fixes[/cyan] says what is compared."
    ),
    epilog=EXIT_CODES_HELP,
)


def flowing(text: str) -> str:
    """Join the lines of each paragraph, so that a terminal breaks them where it ends."""
    return "\n\n".join(" ".join(paragraph.split("\n")) for paragraph in text.split("\n\n"))


def split(values: list[str]) -> tuple[str, ...]:
    """Return comma-separated names one by one."""
    return tuple(name.strip() for value in values for name in value.split(",") if name.strip())
