"""The command ``explain``: read a message, say what it is, or say that it is none of the family."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from precision_eval.cli import options
from precision_eval.cli.application import MODEL, app, flowing
from precision_eval.cli.exit_codes import EXIT_COULD_NOT_TELL
from precision_eval.core.errors import ParameterError

_HELP = """Say what a dtype error means: the operation, the dtypes, the likely cause, the fixes that apply.

Give the sentence in quotes, or paste a whole traceback or log into [cyan]explain -[/cyan]. Eager, compiled and exported
messages of torch 2.6 to 2.15 are known, and those of apex, xformers and flash-attn. A text of no known sentence is said
to be none of the family, and the exit code is 4.

[bold]Examples[/bold]

[cyan]precision-eval explain "expected m1 and m2 to have the same dtype, but got: c10::Half != c10::BFloat16"[/cyan]

[cyan]python infer.py 2>&1 | precision-eval explain -[/cyan]
"""


@app.command(help=flowing(_HELP), rich_help_panel=MODEL)
def explain(
    message: Annotated[
        str, typer.Argument(metavar="MESSAGE", help="The sentence or traceback; - reads it from stdin.")
    ],
    as_json: options.Json = False,
) -> None:
    """Explain a message."""
    from precision_eval.diagnose.explain import explain as explained

    text = sys.stdin.read() if message == "-" else message
    if not text.strip():
        source = "standard input" if message == "-" else "the message"
        raise ParameterError(f"{source} is empty; give the message in quotes, or paste the traceback into `explain -`")
    explanation = explained(text)
    print(json.dumps(explanation.to_dict(), indent=1, allow_nan=False) if as_json else str(explanation))
    if not explanation.known:
        raise typer.Exit(EXIT_COULD_NOT_TELL)
