"""What ``precision-eval explain`` does: read a message, say what it is, or say that it is none of the family.

Conventions: the explanation goes to standard output. Exit code 0 where the message is known, 4 where it is not; a
message that cannot be read at all is bad input (2).
"""

from __future__ import annotations

import json
import sys

import typer

from precision_eval.cli import EXIT_COULD_NOT_TELL
from precision_eval.core.errors import ParameterError


def explain_command(message: str, *, as_json: bool) -> None:
    """Explain a message and print what was found."""
    from precision_eval.diagnose.explain import explain

    text = sys.stdin.read() if message == "-" else message
    if not text.strip():
        source = "standard input" if message == "-" else "the message"
        raise ParameterError(f"{source} is empty; give the message in quotes, or paste the traceback into `explain -`")
    found = explain(text)
    print(json.dumps(found.to_dict(), indent=1, allow_nan=False) if as_json else str(found))
    if not found.known:
        raise typer.Exit(EXIT_COULD_NOT_TELL)
