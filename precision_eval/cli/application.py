"""The application that commands register on, and how a command line ends: one line and an exit code for each error."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from precision_eval.cli.exit_codes import EXIT_BAD_INPUT, EXIT_CODES_HELP, EXIT_SUITE_FAILED
from precision_eval.core.errors import PrecisionEvalError

MODEL, TRACK, AUDIO, MAINTAIN = "Your model", "Track changes", "Audio", "Maintain"
"""Groups of commands in ``--help``."""

_TRACEBACK = "PRECISION_EVAL_TRACEBACK"


app = typer.Typer(
    name="precision-eval",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help=(
        "Which fix for [bold]Expected query, key, and value to have the same dtype[/bold] should I ship, "
        "and what does it cost in latency, memory, numeric drift and sound?\n\n"
        "Begin with [cyan]precision-eval run --out runs/first[/cyan]: on two cores it takes some two minutes and ends "
        "with a report. [cyan]precision-eval list fixes[/cyan] says what is compared."
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


def flowing(text: str) -> str:
    """Join the lines of each paragraph, so that a terminal breaks them where it ends."""
    return "\n\n".join(" ".join(paragraph.split("\n")) for paragraph in text.split("\n\n"))


def split(values: Sequence[str] | None, default: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return comma-separated names one by one; `default` where the option was not given."""
    if values is None:
        return default
    return tuple(name.strip() for value in values for name in value.split(",") if name.strip())


def run_application(app: Callable[[], None], name: str) -> None:
    """Run a command line; whatever goes wrong ends with one line and its exit code."""
    _replace_what_cannot_be_encoded()
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # a full device is noticed here, and not after the exit code was given
    except SystemExit as ended:
        if isinstance(ended.__context__, OSError) and ended.__context__.errno == errno.EPIPE:
            _drop_output()  # click gives a closed pipe the code of a verdict
            sys.exit(EXIT_BAD_INPUT)
        raise
    except Exception as error:  # noqa: BLE001 - the door of the process: whatever comes here gets its line and code
        if os.environ.get(_TRACEBACK):
            traceback.print_exc()
        _fail(error, name)


def _fail(error: Exception, name: str) -> None:
    """Print an error as one line and exit."""
    known = isinstance(error, PrecisionEvalError) or _is_audio_error(error)
    text = str(error)
    if not known and isinstance(error, OSError):
        known, text = True, _os_error_text(error)
        if error.errno in _OUTPUT_LOST:
            _drop_output()
    if not known:
        text = f"internal error: {type(error).__name__}: {text}; please report it, with {_TRACEBACK}=1 set for where"
    print(f"{name}: {' '.join(text.split())}", file=sys.stderr)
    sys.exit(EXIT_BAD_INPUT if known else EXIT_SUITE_FAILED)


_OUTPUT_LOST = (errno.EPIPE, errno.ENOSPC, errno.EIO)


def _os_error_text(error: OSError) -> str:
    if error.filename is None:
        return f"cannot write the output: {error.strerror or error}"
    return f"cannot use {error.filename}: {error.strerror}; mend that, or name another file or folder"


def _drop_output() -> None:
    """Let the interpreter's last flush of standard output go nowhere, so that it does not change the exit code."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError, AttributeError):
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def _replace_what_cannot_be_encoded() -> None:
    """Write characters that the terminal's encoding lacks as escapes, rather than end with an error."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _is_audio_error(error: Exception) -> bool:
    """Say whether an error is one that ``audio_metrics`` raises on purpose, without importing it."""
    module = sys.modules.get("audio_metrics.errors")
    return module is not None and isinstance(error, module.AudioMetricsError)
