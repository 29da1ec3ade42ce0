"""The command ``plan``: memory of a model per fix, the largest length that fits, and the format for the device."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from precision_eval.cli import options
from precision_eval.cli.application import split
from precision_eval.core.errors import ParameterError
from precision_eval.core.files import to_json
from precision_eval.core.table import print_lines, print_table
from precision_eval.fixes.catalog import ALL_FIXES, Fix, fix_by_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from precision_eval.studies.memory.devices import Capability

HELP = """\
Weights, KV cache, and what a call holds at its peak: the model's real classes run on tensors that have shapes but no
memory, so no weights are loaded. Totals are a range, as kernels take scratch memory that differs between machines. A
plan that does not fit is a result.

[bold]Examples[/bold]

[cyan]precision-eval plan --model metavoice-1b --device t4[/cyan]  which formats are native there, and what fits

[cyan]precision-eval plan --model dia-1.6b --dtype float16 --kv-dtype float16 --length 3072 --device-memory 8GiB[/cyan]

[cyan]precision-eval plan --model config.json --fix kv_to_query,float16 --json[/cyan]

[cyan]precision-eval plan --model my_case.py:factory[/cyan]  your own model, with the inputs that it returns

[cyan]precision-eval plan --model dia-1.6b --length 8192 --fix 'all,cache_*_token' --device-memory 16GiB[/cyan]
"""


Model = Annotated[
    str, typer.Option(help="metavoice-1b, dia-1.6b, t5-xxl, a Hugging Face config.json, a case's id or your FACTORY.")
]
WeightsDtype = Annotated[str, typer.Option(help="Of the weights: as_shipped, float16, bfloat16 or float32.")]
Length = Annotated[
    int | None,
    typer.Option(min=1, help="Positions of the cache, tokens of an encoder; [dim]default: the model's own[/dim]"),
]
DeviceMemory = Annotated[str | None, typer.Option(help="Such as 16GiB; gives the largest length that fits.")]
PlannedDevice = Annotated[
    str | None, typer.Option(help="p100, v100, t4, a10g, a100, h100, h200, cpu, cuda, mps or auto: formats and memory.")
]
MathAttention = Annotated[
    bool, typer.Option("--math-attention", help="Plan for the plain kernel, which stores all scores.")
]


def plan(
    model: Model = "metavoice-1b",
    dtype: WeightsDtype = "as_shipped",
    kv_dtype: Annotated[str, typer.Option(help="Of a decoder's KV cache, likewise.")] = "as_shipped",
    batch: Annotated[int, typer.Option(min=1, help="Sequences, before guidance doubles them.")] = 1,
    length: Length = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens per call of a decoder: 1 is decode, more is prefill.")] = 1,
    device_memory: DeviceMemory = None,
    device: PlannedDevice = None,
    fix: options.Fix = None,
    math_attention: MathAttention = False,
    as_json: options.Json = False,
) -> None:
    """Plan and print; a plan that does not fit is a result, not an error."""
    import torch

    from precision_eval.studies.memory.devices import DEVICES, choose_format
    from precision_eval.studies.memory.models import PlannedCall, planned_model
    from precision_eval.studies.memory.plan import Planner, device_lines, parse_bytes, plan_all, plan_notes, plan_table

    candidates, planned, capability = _fixes(fix), planned_model(model), _capability(device)
    own_memory = capability.memory_bytes if capability else None
    memory = own_memory if device_memory is None else parse_bytes(device_memory)
    slots = planned.default_length if length is None else length
    call = PlannedCall(dtype=dtype, kv_dtype=kv_dtype, batch=batch, length=slots, tokens=tokens)
    on_cpu = capability is not None and capability.kind == "cpu"
    half = torch.bfloat16 if on_cpu else torch.float16
    planner = Planner(planned, autocast_dtype=half, math_attention=math_attention)
    plans = plan_all(planner, call, candidates, device_memory_bytes=memory)
    choices = [choose_format(known) for known in ([capability] if capability else DEVICES)]
    parameters = planner.parameter_count(call)
    if as_json:
        head = {"model": planned.name, "source": planned.source, "parameters": parameters, **asdict(call)}
        rows = {"rows": batch * planned.guidance_rows, "device": device, "device_memory_bytes": memory}
        lists = {"fixes": [plan.to_dict() for plan in plans], "formats": [asdict(choice) for choice in choices]}
        print(to_json(head | rows | lists, what="the plan", indent=1))
        return
    size = f"{parameters / 1e9:.4g} B" if parameters >= 1e8 else f"{parameters:,}"
    out = Console(emoji=False)
    print_lines([f"{planned.name}: {size} parameters; {planned.source}"], out, soft_wrap=True)
    print_table(plan_table(planned, call, plans, device_memory_bytes=memory), out)
    notes = plan_notes(planned, call, plans, device_memory_bytes=memory)
    print_lines([*notes, *device_lines(choices)], out, soft_wrap=True)


def _fixes(names: Sequence[str] | None) -> tuple[Fix, ...]:
    """Return the fixes that names or globs choose; ``all`` is every one that a run measures unless told otherwise."""
    from precision_eval.run.plan import fixes_of

    patterns = ["*" if name == "all" else name for name in split(names, ("*",))]
    if not patterns:
        raise ParameterError("--fix names nothing; give names or globs, or leave it out for all")
    return tuple(map(fix_by_id, fixes_of(patterns, ALL_FIXES)))


def _capability(device: str | None) -> Capability | None:
    from precision_eval.studies.memory.devices import capability_here, device_by_name

    if device is None:
        return None
    if device in ("auto", "cpu", "mps") or device.startswith("cuda"):
        return capability_here(device)
    return device_by_name(device)
