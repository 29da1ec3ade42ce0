"""The command ``self-test``: what latencies can tell on this machine, kept for the runs that follow."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from precision_eval.cli import options
from precision_eval.core.environment import self_test_path
from precision_eval.core.files import to_json, write_json
from precision_eval.core.table import print_lines, print_table
from precision_eval.core.workers import use_one_blas_thread

HELP = """\
Four kinds of call are timed beside themselves. False alarms and coverage are measured on pieces of that series; the
slowdown that 95 % of measurements would find is predicted from the scatter. The answer is kept until the next one, and
stored with each run that is made on the same machine with the same torch.
"""


def self_test(
    seconds: Annotated[float, typer.Option(min=1.0, help="Seconds of measuring.")] = 10.0,
    seed: options.Seed = 0,
    as_json: options.Json = False,
) -> None:
    """Test this machine."""
    use_one_blas_thread()
    from precision_eval.measure.self_test import self_test as tested
    from precision_eval.report.self_test import self_test_notes, self_test_table

    content = tested(seconds, seed=seed)
    write_json(self_test_path(), content)
    if as_json:
        print(to_json(content, what="the self-test", indent=1))
        return
    console = Console(emoji=False)
    print_table(self_test_table(content), console)
    kept = f"Kept in {self_test_path()}; runs on this machine store it."
    print_lines([*self_test_notes(content), kept], console)
