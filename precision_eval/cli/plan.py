"""What ``plan`` prints: memory of a model per fix, the largest length that fits, and the format for the device."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console

from precision_eval.core.errors import ParameterError
from precision_eval.core.table import print_table
from precision_eval.fixes.catalog import FIXES, Fix, fix_by_id
from precision_eval.studies.memory.devices import DEVICES, Capability, capability_here, choose_format, device_by_name


def plan_command(
    model: str,
    *,
    dtype: str = "as_shipped",
    kv_dtype: str = "as_shipped",
    batch: int = 1,
    length: int | None = None,
    tokens: int = 1,
    device_memory: str | None = None,
    device: str | None = None,
    fixes: tuple[str, ...] = ("all",),
    math_attention: bool = False,
    as_json: bool = False,
    console: Console | None = None,
) -> None:
    """Plan and print; a plan that does not fit is a result, not an error."""
    import torch

    from precision_eval.studies.memory import PlannedCall, Planner, plan_all, planned_model
    from precision_eval.studies.memory.text import device_lines, parse_bytes, plan_notes, plan_table

    candidates, planned, capability = _fixes(fixes), planned_model(model), _capability(device)
    memory = capability.memory_bytes if capability else None
    if device_memory is not None:
        memory = parse_bytes(device_memory)
    slots = planned.default_length if length is None else length
    call = PlannedCall(dtype=dtype, kv_dtype=kv_dtype, batch=batch, length=slots, tokens=tokens)
    on_cpu = capability is not None and capability.kind == "cpu"
    planner = Planner(
        planned, autocast_dtype=torch.bfloat16 if on_cpu else torch.float16, math_attention=math_attention
    )
    plans = plan_all(planner, call, candidates, device_memory_bytes=memory)
    choices = [choose_format(known) for known in ([capability] if capability else DEVICES)]
    parameters = planner.parameter_count(call)
    if as_json:
        document = {
            "model": planned.name,
            "source": planned.source,
            "parameters": parameters,
            **asdict(call),
            "rows": batch * planned.guidance_rows,
            "device": device,
            "device_memory_bytes": memory,
            "fixes": [plan.to_dict() for plan in plans],
            "formats": [choice.to_dict() for choice in choices],
        }
        print(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False))
        return
    out = console or Console()
    out.print(f"{planned.name}: {parameters / 1e9:.4g} B parameters; {planned.source}", highlight=False, soft_wrap=True)
    print_table(plan_table(planned, call, plans, device_memory_bytes=memory), out)
    for line in [*plan_notes(planned, call, plans, device_memory_bytes=memory), *device_lines(choices)]:
        out.print(line, highlight=False, soft_wrap=True)


def _fixes(names: tuple[str, ...]) -> tuple[Fix, ...]:
    if not names:
        raise ParameterError("--fix names nothing; give ids, or all")
    return tuple(fix for name in names for fix in (FIXES if name == "all" else (fix_by_id(name),)))


def _capability(device: str | None) -> Capability | None:
    if device is None:
        return None
    if device in ("auto", "cpu", "mps") or device.startswith("cuda"):
        return capability_here(device)
    return device_by_name(device)
