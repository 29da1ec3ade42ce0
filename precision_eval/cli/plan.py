"""The command ``plan``: memory of a model per fix, the largest length that fits, and the format for the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from precision_eval.cli import options
from precision_eval.cli.application import split
from precision_eval.cli.settings import PLAN, read_settings, set_option, settings_help
from precision_eval.core.errors import ParameterError
from precision_eval.core.files import to_json
from precision_eval.core.formatting import bytes_of
from precision_eval.core.table import print_lines, print_table
from precision_eval.core.targets import is_target
from precision_eval.fixes.catalog import ALL_FIXES, Fix, fix_by_id

HELP = """\
Counts weights, KV cache and the peak of a call. The model's real classes run on tensors that have shapes but no memory,
so no weights are loaded. Totals are a range, because the scratch memory of kernels differs between machines. A plan
that does not fit is a result.

[bold]Examples[/bold]

[cyan]precision-eval plan my_case.py:factory[/cyan]  your own model, with the inputs that it returns

[cyan]precision-eval plan my_case.py:factory --length 8192[/cyan]  where it is written `def factory(length=2048)`

[cyan]precision-eval plan config.json --device t4 --length 8192[/cyan]  a causal language model of Hugging Face

[cyan]precision-eval plan config.json --set kv_dtype=float16 --fix kv_to_query,float16 --device 8GiB --json[/cyan]
"""
HELP += settings_help(PLAN)

_OF_SHIPPED = ("dynamo_fallback", "upstream")  # nothing that a plan of a user's model could say

Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="file.py:FACTORY, a case's id, or config.json of a causal language model."),
]
Length = Annotated[
    int | None,
    typer.Option(
        min=1, help="Slots of the cache, and what a factory's `length` is; [dim]default: the model's own[/dim]"
    ),
]
PlannedDevice = Annotated[
    str | None,
    typer.Option(
        help="t4, a10g, a100, a100-80gb, h100, h200, cpu, cuda, mps or auto; or memory, such as 16GiB. Shows whether "
        "the model fits, and the largest length that does."
    ),
]
Settings = Annotated[list[str] | None, set_option(PLAN)]


def plan(
    model: Model,
    length: Length = None,
    device: PlannedDevice = None,
    fix: options.Fix = None,
    setting: Settings = None,
    as_json: options.Json = False,
) -> None:
    """Plan and print; a plan that does not fit is a result, not an error."""
    import torch

    from precision_eval.studies.memory.devices import device_named
    from precision_eval.studies.memory.models import PlannedCall, planned_model
    from precision_eval.studies.memory.plan import Planner, device_line, plan_all, plan_notes, plan_table, together_line

    settings = read_settings(setting, PLAN)
    planned = planned_model(model, length=length, size=settings.pop("size"))
    candidates = [each for each in _fixes(fix) if fix or not is_target(model) or each.id not in _OF_SHIPPED]
    memory = None if device is None else bytes_of(device)
    target = None if device is None or memory is not None else device_named(device)
    memory = target.memory_bytes if target else memory
    call = PlannedCall(length=planned.default_length if length is None else length, **settings)
    half = torch.bfloat16 if target is not None and target.name == "cpu" else torch.float16
    planner = Planner(planned, autocast_dtype=half, device=target)
    plans = plan_all(planner, call, candidates, device_memory_bytes=memory)
    parameters = planner.parameter_count(call)
    if as_json:
        head = {"model": planned.name, "source": planned.source, "parameters": parameters, **asdict(call)}
        rest = {"rows": call.batch, "device": device, "device_memory_bytes": memory}
        print(to_json(head | rest | {"fixes": [plan.to_dict() for plan in plans]}, what="the plan", indent=1))
        return
    size = f"{parameters / 1e9:.4g} B" if parameters >= 1e8 else f"{parameters:,}"
    console = Console(emoji=False)
    print_lines([f"{planned.name}: {size} parameters; {planned.source}"], console, soft_wrap=True)
    print_table(plan_table(planned, call, plans, device_memory_bytes=memory), console)
    notes = plan_notes(plans, device_memory_bytes=memory)
    if planned.as_built and (target is None or target.name != "cpu"):  # what `run` takes
        notes.append(together_line(planner, call, plans, memory_bytes=memory))
    print_lines([*notes, *([device_line(target)] if target else [])], console, soft_wrap=True)


def _fixes(names: Sequence[str] | None) -> tuple[Fix, ...]:
    """Return the fixes that names or globs choose; ``all`` is every one that a run measures by default."""
    from precision_eval.run.plan import fixes_of

    patterns = ["*" if name == "all" else name for name in split(names, ("*",))]
    if not patterns:
        raise ParameterError("--fix names nothing; give names or globs, or leave it out for all")
    return tuple(map(fix_by_id, fixes_of(patterns, ALL_FIXES)))
