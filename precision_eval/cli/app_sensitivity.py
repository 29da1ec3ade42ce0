"""The command ``sensitivity``, registered on the application; it imports what it needs when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from precision_eval.cli.application import app, flowing, split

Names = list[str]

_HELP = """Map which layers and roles carry the drift, and find a mixed policy that beats every uniform fix.

Each site (a layer's q, k, v, scores, softmax, output, cache, positions, norm, mlp, ...) is dropped to half alone, and
held in float32 alone, on the same inputs; the drift to float64 is ranked, with intervals over inputs. Policies are
searched along that map on one half of the inputs, really executed, and held on the other half against every uniform
fix, drift and paired latency. That none wins is a result too.

Runs are appended to OUT/runs.jsonl; the same command goes on from there.

[bold]Examples[/bold]

[cyan]precision-eval sensitivity --out runs/sensitivity[/cyan]  the voice, and transformers' T5 and Dia

[cyan]precision-eval sensitivity --targets voice --formats bfloat16 --no-policies --out runs/voice-map[/cyan]

[cyan]precision-eval sensitivity --report-only --out results/sensitivity[/cyan]
"""


@app.command(help=flowing(_HELP))
def sensitivity(
    out: Annotated[Path, typer.Option(help="Folder of runs, tables and figures.")] = Path("runs/sensitivity"),
    targets: Annotated[
        Names | None, typer.Option(help="voice, t5-encoder, dia-encoder, dia-decoder, attention-decode.")
    ] = None,
    formats: Annotated[Names | None, typer.Option(help="bfloat16, float16.")] = None,
    size: Annotated[str, typer.Option(help="tiny or cpu.")] = "cpu",
    seed: Annotated[int, typer.Option(min=0, help="Of drawn weights and of inputs.")] = 0,
    policies: Annotated[bool, typer.Option("--policies/--no-policies", help="Also search and prove policies.")] = True,
    processes: Annotated[int, typer.Option(min=1, help="Fresh processes that time each target.")] = 6,
    budget: Annotated[float, typer.Option(min=0.05, help="Seconds of timing per process and policy.")] = 1.5,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Run nothing; write tables and figures from what is there.")
    ] = False,
) -> None:
    """Map sensitivities."""
    from precision_eval.cli.sensitivity import Request, sensitivity_command

    sensitivity_command(
        Request(
            out=out,
            targets=split(targets) if targets else None,
            formats=split(formats) if formats else None,
            size=size,
            seed=seed,
            policies=policies,
            processes=processes,
            budget_s=budget,
            report_only=report_only,
        )
    )
