"""The command ``doctor``: examine a model, print where dtypes split and why, and which fix cures it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from precision_eval.cases.own import CHECKPOINT, OwnCase, on_device, own_case
from precision_eval.cases.systems import case_by_id
from precision_eval.cli import options
from precision_eval.cli.application import EXIT_VERDICT, leaving_is_noticed
from precision_eval.cli.settings import DOCTOR, read_settings, set_option, settings_help
from precision_eval.core.environment import usable_device
from precision_eval.core.files import to_json
from precision_eval.core.table import print_lines
from precision_eval.core.targets import is_target
from precision_eval.doctor.diagnosis import Diagnosis, answer_lines, other_lines

HELP = """\
The model runs once under observation. The report names the first operation at which dtypes split by accident, with its
module, its line and the history of each operand, and a change that cures it, run on a copy. It also lists silent
promotions and casts, modules stored in another dtype, what autocast changed, the attention backend that ran, values
near overflow, and where a drift begins that the format does not explain. Then every fix is tried on the model from
outside, and those that cure it are ranked by drift against float64, paired latency and memory.

MODEL is a function without arguments that returns (model, inputs), where inputs is a tuple or a dict; or hf:FOLDER, a
transformers checkpoint in safetensors (needs the extra zoo); or a case's id. Intended mixed dtypes, such as norms and
rotations that cast in and out, are not faults. The exit code is 1 if there is a fault, else 0.

[bold]Examples[/bold]

[cyan]precision-eval doctor mypackage.loading:model_and_inputs[/cyan]

[cyan]precision-eval doctor hf:./checkpoint --set dtype=float16[/cyan]

[cyan]precision-eval doctor metavoice-decode --set latency=off[/cyan]  one of the shipped cases

[cyan]precision-eval doctor mypackage.loading:model_and_inputs --write-patch fix.patch[/cyan]  then git apply fix.patch

[cyan]precision-eval doctor mypackage.loading:model_and_inputs --no-fixes --json > diagnosis.json[/cyan]
"""
HELP += settings_help(DOCTOR)

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="package.module:function, file.py:function, hf:FOLDER or a case's id.")
]
Device = Annotated[
    str | None,
    typer.Option(help="auto, cpu, cuda, cuda:i or mps; [dim]default: where the factory put the model; else cpu[/dim]"),
]
WritePatch = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the suggested change of the source, for git apply.")
]


def doctor(
    model: Model,
    device: Device = None,
    fixes: Annotated[bool, typer.Option(help="Try every fix from outside.")] = True,
    write_patch: WritePatch = None,
    setting: Annotated[list[str] | None, set_option(DOCTOR)] = None,
    as_json: options.Json = False,
) -> None:
    """Examine a model."""
    settings = read_settings(setting, DOCTOR)
    examination = {
        "fixes": fixes,
        "latency": settings["latency"],
        "compiled": settings["compile"],
        "budget_s": settings["budget"],
    }
    with leaving_is_noticed():
        name, case = case_to_examine(model, device, settings)
    with leaving_is_noticed():
        diagnosis = _examine_and_print(name, case, as_json=as_json, **examination)
    if write_patch is not None:
        _write_patch(diagnosis, write_patch)
    if diagnosis.faults:
        raise typer.Exit(EXIT_VERDICT)


def case_to_examine(model: str, device: str | None, settings: Mapping[str, Any]) -> tuple[str, OwnCase]:
    """Return a model's name, and the model with what it is called with."""
    seed = settings["seed"]
    if model.startswith(CHECKPOINT):
        from precision_eval.cases.huggingface.generation import case_on_device

        folder, device = model.removeprefix(CHECKPOINT), usable_device(device or "cpu")
        return Path(folder).name, case_on_device(folder, dtype=settings["dtype"], device=device, seed=seed)
    if is_target(model):
        case = own_case(model, seed=seed)
        return model, case if device is None else on_device(case, usable_device(device), seed=seed)
    shipped = case_by_id(model)
    built = shipped.build(settings["size"] or shipped.sizes[0], device=usable_device(device or "cpu"), seed=seed)
    return model, OwnCase(model=built.model, inputs=tuple(built.inputs))


def _examine_and_print(name: str, case: OwnCase, *, as_json: bool, **examination: Any) -> Diagnosis:
    """Examine a model; print where and why as soon as they are known, then the rest."""
    from precision_eval.doctor.examination import examine

    if as_json:
        diagnosis = examine(case.module(), *case.arguments(), **examination)
        print(to_json({"target": name, **diagnosis.to_dict()}, what="the diagnosis", indent=1))
        return diagnosis
    console = Console(highlight=False, emoji=False)
    diagnosis = examine(
        case.module(),
        *case.arguments(),
        **examination,
        first=lambda early: print_lines(answer_lines(early), console, soft_wrap=True),
    )
    print_lines(other_lines(diagnosis), console, soft_wrap=True)
    return diagnosis


def _write_patch(diagnosis: Diagnosis, path: Path) -> None:
    """Write a change of the source that cures by itself; no half of one."""
    patch = next((patch for patch in diagnosis.patches if patch.diff and patch.verified and not patch.code), None)
    if patch is not None:
        path.write_text(patch.diff, encoding="utf-8")
        elsewhere = [name for name in re.findall("(?m)^--- a/(.+)$", patch.diff) if not Path(name).exists()]
        how = f"git apply {path}" if not elsewhere else f"patch -p1 in the folder that {elsewhere[0]} is below"
        typer.echo(f"wrote {path} (no fault left when run); apply it with {how}", err=True)
        return
    change, why = diagnosis.patch, "no change of a source line cures the model"
    if change is None and not diagnosis.faults:
        why = "there is no fault"
    elif change is not None and change.verified and change.diff:
        why = "the change above is of the source and of what is stored, and needs both"
    elif change is not None and change.verified:
        why += "; the lines above that store or set something do, and go where the model is built"
    elif change is not None and change.diff:
        why += f" by itself; left: {'; '.join(change.left[:3])}"
    typer.echo(f"nothing written to {path}: {why}", err=True)
