"""The commands about a model of the user's own: ``init``, ``doctor``, ``explain`` and ``compare``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from precision_eval.cases.own import OwnCase, on_device, own_case
from precision_eval.cases.systems import case_by_id
from precision_eval.cli import options
from precision_eval.cli.application import EXIT_COULD_NOT_TELL, EXIT_VERDICT, leaving_is_noticed
from precision_eval.core.environment import resolved_device
from precision_eval.core.errors import ParameterError
from precision_eval.core.files import to_json
from precision_eval.core.formatting import visible
from precision_eval.core.table import print_lines
from precision_eval.doctor.diagnosis import Diagnosis, answer_lines, other_lines
from precision_eval.explain import explain as explained
from precision_eval.studies.starter import write_files

HELP_OF_DOCTOR = """\
The model runs once under observation. The report names the first operation at which dtypes split without anybody having
asked for it, by module and line, with the history of each operand; a change that cures it, run on a copy; silent
promotions and casts; modules held in another dtype; what autocast changed; which attention backend ran; values near
overflow; and where a drift enters that the format does not explain. Then every fix is tried on the model from outside,
and those that cure it are ranked by drift against float64, paired latency and memory.

FACTORY is a function without arguments that returns (model, inputs), inputs being a tuple or a dict. Mixed dtypes on
purpose, such as norms and rotations that cast in and out, are no fault. Exit code 0 without a fault, 1 with one.

[bold]Examples[/bold]

[cyan]precision-eval doctor mypackage.loading:model_and_inputs[/cyan]

[cyan]precision-eval doctor --hf ./checkpoint --dtype float16[/cyan]  safetensors only; needs the extra zoo

[cyan]precision-eval doctor --case metavoice-decode --no-latency[/cyan]  one of this suite's own

[cyan]precision-eval doctor mypackage.loading:model_and_inputs --write-patch fix.patch[/cyan]  then git apply fix.patch

[cyan]precision-eval doctor mypackage.loading:model_and_inputs --no-fixes --json > found.json[/cyan]
"""

HELP_OF_EXPLAIN = """\
Give the sentence in quotes, a file that holds it, or paste a whole traceback or log into [cyan]explain -[/cyan].
Eager, compiled and exported messages of torch 2.6 to 2.15 are known, and those of apex, xformers and flash-attn. If
the text contains no known dtype error, [cyan]explain[/cyan] says so and exits with 4.

[bold]Examples[/bold]

[cyan]precision-eval explain "expected m1 and m2 to have the same dtype, but got: c10::Half != c10::BFloat16"[/cyan]

[cyan]python infer.py 2>&1 | precision-eval explain -[/cyan]
"""

HELP_OF_COMPARE = """\
Each FACTORY is a function without arguments that returns (model, inputs), written file.py:function or
package.module:function. All have to return the same inputs. The first is the baseline of time; how far each output is
from each other one is told too.

[bold]Examples[/bold]

[cyan]precision-eval compare before.py:factory after.py:factory[/cyan]
"""


def init(folder: Annotated[Path, typer.Argument(help="Root of your repository.")] = Path()) -> None:
    """Write the files that a repository begins with."""
    for path in write_files(folder):
        print(visible(f"written: {path}"))


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
    device: Annotated[
        str | None,
        typer.Option(help="auto, cpu, cuda, cuda:i or mps; [dim]default: where the factory put it; else cpu[/dim]"),
    ] = None,
    dtype: Annotated[str, typer.Option(help="To load a checkpoint in; [dim]default: its config's[/dim]")] = "",
    fixes: Annotated[bool, typer.Option(help="Try every fix from outside.")] = True,
    latency: Annotated[bool, typer.Option(help="Time the fixes that cure.")] = True,
    compiled: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Also under torch.compile, backend aot_eager; slow.")
    ] = False,
    write_patch: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the suggested change of the source, which git apply takes."),
    ] = None,
    budget: Annotated[
        float,
        typer.Option(
            min=0.5, help="Seconds of timing, all fixes together; left out where it would take ten times as long."
        ),
    ] = 3.0,
    seed: options.Seed = 0,
    as_json: options.Json = False,
) -> None:
    """Examine a model."""
    examination = {"fixes": fixes, "latency": latency, "compiled": compiled, "budget_s": budget}
    with leaving_is_noticed():
        name, own = _target(factory, hf, case, size=size, device=device, dtype=dtype, seed=seed)
    with leaving_is_noticed():
        diagnosis = _examined_aloud(name, own, as_json=as_json, **examination)
    if write_patch is not None:
        _write(diagnosis, write_patch)
    if diagnosis.faults:
        raise typer.Exit(EXIT_VERDICT)


def _examined_aloud(name: str, own: OwnCase, *, as_json: bool, **examination: Any) -> Diagnosis:
    """Examine a model; print where and why as soon as they are known, then the rest."""
    from precision_eval.doctor.examination import examine

    if as_json:
        diagnosis = examine(own.module(), *own.arguments(), **examination)
        print(to_json({"target": name, **diagnosis.to_dict()}, what="the diagnosis", indent=1))
        return diagnosis
    console = Console(highlight=False, emoji=False)
    diagnosis = examine(
        own.module(),
        *own.arguments(),
        **examination,
        first=lambda early: print_lines(answer_lines(early), console, soft_wrap=True),
    )
    print_lines(other_lines(diagnosis), console, soft_wrap=True)
    return diagnosis


def _write(diagnosis: Diagnosis, path: Path) -> None:
    patch = next((patch for patch in diagnosis.patches if patch.diff), None)
    if patch is None:
        typer.echo(f"nothing written to {path}: no line of source was found whose change cures the model", err=True)
        return
    path.write_text(patch.diff, encoding="utf-8")
    run = "no fault left when run" if patch.verified else f"left when run: {'; '.join(patch.left[:3])}"
    typer.echo(f"wrote {path} ({run}); apply it with git apply {path}", err=True)


def _target(
    factory: str | None,
    checkpoint: str | None,
    case: str | None,
    *,
    size: str | None,
    device: str | None,
    dtype: str,
    seed: int,
) -> tuple[str, OwnCase]:
    """A model and what it is called with, and its name."""
    given = [name for name, value in (("factory", factory), ("hf", checkpoint), ("case", case)) if value]
    if len(given) != 1:
        raise ParameterError(
            f"doctor was given {' and '.join(given) or 'nothing'}; give one of package.module:factory, --hf and --case"
        )
    if factory:
        own = own_case(factory, seed=seed)
        return factory, own if device is None else on_device(own, resolved_device(device), seed=seed)
    device = resolved_device(device or "cpu")
    if checkpoint:
        from precision_eval.cases.huggingface.generation import case_on_device

        return Path(checkpoint).name, case_on_device(checkpoint, dtype=dtype or None, device=device, seed=seed)
    assert case
    known = case_by_id(case)
    built = known.build(size or known.sizes[0], device=device, seed=seed)
    return case, OwnCase(model=built.model, inputs=tuple(built.inputs))


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
) -> None:
    """Explain a message."""
    is_file = len(message) < _LONGEST_PATH and "\n" not in message and Path(message).is_file()
    text = sys.stdin.read() if message == "-" else _read_log(message) if is_file else message
    if not text.strip():
        source = "standard input" if message == "-" else message if is_file else "the message"
        raise ParameterError(f"{source} is empty; give the message in quotes, or paste the traceback into `explain -`")
    explanation = explained(text)
    print(to_json(explanation.to_dict(), what="the explanation", indent=1) if as_json else str(explanation))
    if not explanation.known:
        raise typer.Exit(EXIT_COULD_NOT_TELL)


def compare(
    factory: Annotated[list[str], typer.Argument(metavar="FACTORY...", help="The first is the baseline.")],
    budget: options.Budget = 2.0,
    seed: options.Seed = 0,
) -> None:
    """Compare calls."""
    from precision_eval.studies.compare import compared_factories

    with leaving_is_noticed():
        comparison = compared_factories(factory, budget_s=budget or 2.0, seed=seed)
    print(comparison)
