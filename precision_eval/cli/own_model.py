"""The commands ``init``, ``explain`` and ``compare``."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from precision_eval.cli import options
from precision_eval.cli.application import EXIT_COULD_NOT_TELL, leaving_is_noticed
from precision_eval.cli.settings import COMPARE, read_settings, set_option, settings_help
from precision_eval.core.errors import ParameterError
from precision_eval.core.files import to_json
from precision_eval.core.formatting import visible
from precision_eval.explain import explain as explained
from precision_eval.studies.starter import UNKNOWN_SOURCE, find_source, write_files

HELP_OF_EXPLAIN = """\
Pass the message in quotes or a file that contains it, or pipe a whole traceback or log into [cyan]explain -[/cyan]. It
knows the eager, compiled and exported messages of torch 2.6 to 2.15, and messages of packages such as flash-attn,
xformers, vLLM and ONNX Runtime. The answer has 15 lines at most; --verbose gives every cause, fix and link. If the text
contains no known dtype error, [cyan]explain[/cyan] says so and exits with 4.

[bold]Examples[/bold]

[cyan]precision-eval explain "expected m1 and m2 to have the same dtype, but got: c10::Half != c10::BFloat16"[/cyan]

[cyan]python infer.py 2>&1 | precision-eval explain -[/cyan]
"""

HELP_OF_COMPARE = """\
Each FACTORY is a function without arguments that returns (model, inputs), written file.py:function or
package.module:function. All must return the same inputs. Times are relative to the first factory. Pairwise output
differences are printed too.

[bold]Examples[/bold]

[cyan]precision-eval compare before.py:factory after.py:factory[/cyan]
"""
HELP_OF_COMPARE += settings_help(COMPARE)


def init(folder: Annotated[Path, typer.Argument(help="Root of your repository.")] = Path()) -> None:
    for path in write_files(folder):
        print(visible(f"written: {path}"))
    if find_source() == UNKNOWN_SOURCE:
        print("precision-eval is on no index: put the address of a repository that your CI reaches into the workflow")


_LONGEST_PATH = 250  # what a system takes as a file's name


def _read_log(name: str) -> str:
    """Read a log; what is no UTF-8 in it is no part of a message."""
    try:
        return Path(name).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ParameterError(f"{name} cannot be read: {error.strerror}; give the message itself") from error


def explain(
    message: Annotated[
        str, typer.Argument(metavar="MESSAGE", help="The sentence or traceback, or a file; - reads stdin.")
    ],
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    is_file = len(message) < _LONGEST_PATH and "\n" not in message and Path(message).is_file()
    text = sys.stdin.read() if message == "-" else _read_log(message) if is_file else message
    if not text.strip():
        source = "standard input" if message == "-" else message if is_file else "the message"
        raise ParameterError(f"{source} is empty; give the message in quotes, or paste the traceback into `explain -`")
    explanation = explained(text)
    if as_json:
        print(to_json(explanation.to_dict(), what="the explanation", indent=1))
    else:
        width = min(110, max(80, shutil.get_terminal_size((110, 24)).columns))
        print(explanation.to_text(verbose=verbose, width=width))
    if not explanation.known:
        raise typer.Exit(EXIT_COULD_NOT_TELL)


def compare(
    factory: Annotated[list[str], typer.Argument(metavar="FACTORY...", help="The first is the baseline.")],
    setting: Annotated[list[str] | None, set_option(COMPARE)] = None,
) -> None:
    from precision_eval.studies.compare import compared_factories

    settings = read_settings(setting, COMPARE)
    with leaving_is_noticed():
        comparison = compared_factories(factory, budget_s=settings["budget"], seed=settings["seed"])
    print(comparison)
