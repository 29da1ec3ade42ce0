"""The commands that answer one question each: ``explain``, ``compare``, ``plan``, ``expect`` and ``init``.

Registered on the application; each imports what it needs when it runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from precision_eval.cli.application import app, flowing, split

Names = list[str]

_EXPLAIN_HELP = """Say what a dtype error means: the operation, the dtypes, the likely cause, the fixes that apply.

Give the sentence in quotes, or paste a whole traceback or log into [cyan]explain -[/cyan]. Eager, compiled and exported
messages of torch 2.6 to 2.15 are known, and those of apex, xformers and flash-attn. A text of no known sentence is said
to be none of the family, and the exit code is 1.

[bold]Examples[/bold]

[cyan]precision-eval explain "expected m1 and m2 to have the same dtype, but got: c10::Half != c10::BFloat16"[/cyan]

[cyan]python infer.py 2>&1 | precision-eval explain -[/cyan]
"""

_COMPARE_HELP = """Compare calls of your own: paired latency, memory, and drift to a float64 copy of the first.

Each FACTORY is a function without arguments that returns (model, inputs), written file.py:function or
package.module:function. All have to return the same inputs. The first is the baseline of time; how far each output is
from each other one is told too.

[bold]Examples[/bold]

[cyan]precision-eval compare before.py:factory after.py:factory[/cyan]
"""

_PLAN_HELP = """Add up the memory that a model needs under each fix, and the largest length that fits.

Weights, KV cache, and what a call holds at its peak: the model's real classes run on tensors that have shapes but no
memory, so no weights are loaded. Totals are a range, as kernels take scratch memory that differs between machines. A
plan that does not fit is a result.

[bold]Examples[/bold]

[cyan]precision-eval plan --model metavoice-1b --device t4[/cyan]  which formats are native there, and what fits

[cyan]precision-eval plan --model dia-1.6b --dtype float16 --kv-dtype float16 --length 3072 --device-memory 8GiB[/cyan]

[cyan]precision-eval plan --model config.json --fix kv_to_query,float16 --json[/cyan]
"""

_EXPECT_HELP = """Run every fix on every case at its smallest size, and hold the statuses to the recorded table.

The table says, per torch version, what passes and what raises with which message; [cyan]--changes[/cyan] prints where
a status turns over with the version. Exit code 1 where this torch does otherwise than recorded.

[bold]Examples[/bold]

[cyan]precision-eval expect[/cyan]  eager, all cases

[cyan]precision-eval expect --mode eager,compiled-aot_eager --record[/cyan]  add this torch's column
"""


@app.command(help=flowing(_EXPLAIN_HELP))
def explain(
    message: Annotated[
        str, typer.Argument(metavar="MESSAGE", help="The sentence or traceback; - reads it from stdin.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print strict JSON.")] = False,
) -> None:
    """Explain a message."""
    from precision_eval.cli.explain import explain_command

    explain_command(message, as_json=as_json)


@app.command(help=flowing(_COMPARE_HELP))
def compare(
    factory: Annotated[Names, typer.Argument(metavar="FACTORY...", help="The first is the baseline.")],
    budget: Annotated[float, typer.Option(min=0.05, help="Seconds of timing, all together.")] = 2.0,
    seed: Annotated[int, typer.Option(min=0, help="Set before each factory is called.")] = 0,
) -> None:
    """Compare calls."""
    from precision_eval.studies.own import compared_factories

    print(compared_factories(factory, budget_s=budget, seed=seed))


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Root of your repository.")] = Path(),
) -> None:
    """Write a commented case file, a pytest file, asv's two files and a CI workflow into your repository."""
    from precision_eval.studies.starter import write_files

    for path in write_files(folder):
        print(f"written: {path}")


@app.command(help=flowing(_PLAN_HELP))
def plan(
    model: Annotated[
        str, typer.Option(help="metavoice-1b, dia-1.6b, t5-xxl, or a Hugging Face config.json.")
    ] = "metavoice-1b",
    dtype: Annotated[
        str, typer.Option(help="Of the weights: as_shipped, float16, bfloat16 or float32.")
    ] = "as_shipped",
    kv_dtype: Annotated[str, typer.Option(help="Of a decoder's KV cache, likewise.")] = "as_shipped",
    batch: Annotated[int, typer.Option(min=1, help="Sequences, before guidance doubles them.")] = 1,
    length: Annotated[
        int | None,
        typer.Option(min=1, help="Positions of the cache, tokens of an encoder; [dim]default: the model's own[/dim]"),
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens per call of a decoder: 1 is decode, more is prefill.")] = 1,
    device_memory: Annotated[
        str | None, typer.Option(help="Such as 16GiB; gives the largest length that fits.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="p100, v100, t4, a100, h100, cpu, cuda, mps or auto: formats and memory.")
    ] = None,
    fix: Annotated[Names, typer.Option(help="Ids, or all.")] = ["all"],  # noqa: B006
    math_attention: Annotated[
        bool, typer.Option("--math-attention", help="Plan for the plain kernel, which stores all scores.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print strict JSON.")] = False,
) -> None:
    """Plan memory."""
    from precision_eval.cli.plan import plan_command

    plan_command(
        model,
        dtype=dtype,
        kv_dtype=kv_dtype,
        batch=batch,
        length=length,
        tokens=tokens,
        device_memory=device_memory,
        device=device,
        fixes=split(fix),
        math_attention=math_attention,
        as_json=as_json,
    )


@app.command(help=flowing(_EXPECT_HELP))
def expect(
    case: Annotated[Names, typer.Option(help="Names or globs.")] = ["*"],  # noqa: B006
    mode: Annotated[Names, typer.Option(help="eager, compiled-aot_eager, compiled-inductor.")] = ["eager"],  # noqa: B006
    record: Annotated[bool, typer.Option("--record", help="Write this torch's column instead of comparing.")] = False,
    changes: Annotated[
        bool, typer.Option("--changes", help="Run nothing; print what changed with the version.")
    ] = False,
    table: Annotated[Path | None, typer.Option(help="Another table than the package's own.")] = None,
) -> None:
    """Check the expectation table."""
    from precision_eval.cli.expect import ExpectRequest, expect_command

    expect_command(
        ExpectRequest(modes=split(mode), cases=split(case), record=record, show_changes=changes, table=table)
    )
