"""The command ``doctor``, registered on the application; imports what it needs when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from precision_eval.cli.application import app, flowing

_DOCTOR_HELP = """Find where dtypes split in a model of yours, what brought each dtype there, and which fix cures it.

The model runs once under observation. Told are the first operation at which dtypes split without anybody having asked
for it, by module and line, with the history of each operand; silent promotions and casts; modules held in another
dtype; what autocast changed; which attention backend ran; values near overflow. Then every fix is tried on the model
from outside, and those that cure it are ranked by drift against float64, paired latency and memory.

FACTORY is a function without arguments that returns (model, inputs), inputs being a tuple or a dict. Mixed dtypes on
purpose, such as norms and rotations that cast in and out, are no fault. Exit code 0 without a fault, 1 with one.

[bold]Examples[/bold]

[cyan]precision-eval doctor mypackage.loading:model_and_inputs[/cyan]

[cyan]precision-eval doctor --hf ./checkpoint --dtype float16[/cyan]  safetensors only; needs the extra zoo

[cyan]precision-eval doctor --case metavoice-decode --no-latency[/cyan]  one of this suite's own

[cyan]precision-eval doctor mypackage.loading:model_and_inputs --no-fixes --json > found.json[/cyan]
"""


@app.command(help=flowing(_DOCTOR_HELP))
def doctor(
    factory: Annotated[
        str | None,
        typer.Argument(metavar="[FACTORY]", help="package.module:function, found from the working directory."),
    ] = None,
    hf: Annotated[
        str | None, typer.Option("--hf", metavar="NAME_OR_FOLDER", help="A checkpoint of transformers instead.")
    ] = None,
    case: Annotated[str | None, typer.Option(metavar="ID", help="A case of this suite, as shipped, instead.")] = None,
    size: Annotated[str | None, typer.Option(help="Of the case; [dim]default: its smallest[/dim]")] = None,
    device: Annotated[str, typer.Option(help="Of a case or a checkpoint; a factory chooses its own.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="To load a checkpoint in; [dim]default: its config's[/dim]")] = "",
    fixes: Annotated[bool, typer.Option(help="Try every fix from outside.")] = True,
    latency: Annotated[bool, typer.Option(help="Time the fixes that cure.")] = True,
    compiled: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Also under torch.compile, backend aot_eager.")
    ] = True,
    budget: Annotated[
        float,
        typer.Option(
            min=0.5, help="Seconds of timing, all fixes together; left out where it would take ten times as long."
        ),
    ] = 3.0,
    seed: Annotated[int, typer.Option(min=0, help="Of a case, or of a checkpoint's inputs.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print strict JSON.")] = False,
) -> None:
    """Examine a model."""
    from precision_eval.cli.doctor import Request, doctor_command

    doctor_command(
        Request(
            factory=factory,
            hf=hf,
            case=case,
            size=size,
            device=device,
            dtype=dtype,
            fixes=fixes,
            latency=latency,
            compiled=compiled,
            budget_s=budget,
            seed=seed,
            as_json=as_json,
        )
    )
