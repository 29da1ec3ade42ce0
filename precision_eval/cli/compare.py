"""The command ``compare``: calls of the user's own, side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from precision_eval.cli import options
from precision_eval.cli.application import MODEL, app, flowing

_HELP = """Compare calls of your own: paired latency, memory, and drift to a float64 copy of the first.

Each FACTORY is a function without arguments that returns (model, inputs), written file.py:function or
package.module:function. All have to return the same inputs. The first is the baseline of time; how far each output is
from each other one is told too.

[bold]Examples[/bold]

[cyan]precision-eval compare before.py:factory after.py:factory[/cyan]
"""


@app.command(help=flowing(_HELP), rich_help_panel=MODEL)
def compare(
    factory: Annotated[list[str], typer.Argument(metavar="FACTORY...", help="The first is the baseline.")],
    budget: options.Budget = 2.0,
    seed: options.Seed = 0,
) -> None:
    """Compare calls."""
    from precision_eval.studies.compare import compared_factories

    print(compared_factories(factory, budget_s=budget or 2.0, seed=seed))
