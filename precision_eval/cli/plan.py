"""What ``plan`` prints: memory of a model per fix, the largest length that fits, and the format for the device."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from precision_eval.core.errors import ParameterError, unknown_name
from precision_eval.fixes.catalog import FIXES, Fix, fix_by_id
from precision_eval.studies.memory.config import read_config
from precision_eval.studies.memory.devices import (
    DEVICES,
    Capability,
    Choice,
    capability_here,
    choose_format,
    device_by_name,
)
from precision_eval.studies.memory.models import MODELS, ModelConfig, model_by_name, parameter_count
from precision_eval.studies.memory.plan import FixPlan, Request, norm_promotes, plan_all
from precision_eval.studies.memory.text import device_lines, notes, parse_bytes, plan_table


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """What the command line asks for."""

    model: str
    dtype: str = "as_shipped"
    kv_dtype: str = "as_shipped"
    batch: int = 1
    length: int | None = None
    tokens: int = 1
    device_memory: str | None = None
    device: str | None = None
    fixes: tuple[str, ...] = ("all",)
    math_attention: bool = False
    as_json: bool = False


def plan_command(asked: PlanRequest, *, console: Console | None = None) -> None:
    """Plan and print; a plan that does not fit is a result, not an error."""
    fixes = _fixes(asked.fixes)
    config = _config(asked.model)
    capability = _capability(asked.device)
    request = _request(asked, config, capability)
    plans = plan_all(request, fixes)
    choices = [choose_format(found) for found in ([capability] if capability else DEVICES)]
    if asked.as_json:
        print(json.dumps(_document(asked, request, plans, choices), indent=1, ensure_ascii=False, allow_nan=False))
        return
    out = console or Console()
    out.print(
        f"{config.name}: {parameter_count(config) / 1e9:.4g} B parameters; {config.source}",
        highlight=False,
        soft_wrap=True,
    )
    out.print(plan_table(request, plans))
    for line in [*notes(request, plans), *device_lines(choices)]:
        out.print(line, highlight=False, soft_wrap=True)


def _fixes(names: tuple[str, ...]) -> tuple[Fix, ...]:
    if not names:
        raise ParameterError("--fix names nothing; give ids, or all")
    return tuple(fix for name in names for fix in (FIXES if name == "all" else (fix_by_id(name),)))


def _config(model: str) -> ModelConfig:
    if model.endswith(".json") or Path(model).is_file():
        return read_config(Path(model))
    if model in {known.name for known in MODELS}:
        return model_by_name(model)
    raise unknown_name("model", model, [*(known.name for known in MODELS), "CONFIG.json"])


def _capability(device: str | None) -> Capability | None:
    if device is None:
        return None
    if device in ("auto", "cpu", "mps") or device.startswith("cuda"):
        return capability_here(device)
    return device_by_name(device)


def _request(asked: PlanRequest, config: ModelConfig, capability: Capability | None) -> Request:
    memory = capability.memory_bytes if capability else None
    return Request(
        config=config,
        dtype=asked.dtype,
        kv_dtype=asked.kv_dtype,
        batch=asked.batch,
        length=config.main.max_length if asked.length is None else asked.length,
        tokens=asked.tokens,
        cpu=capability is not None and capability.kind == "cpu",
        math_attention=asked.math_attention,
        fused_norm_promotes=_norm_promotes(),
        device_memory_bytes=parse_bytes(asked.device_memory) if asked.device_memory is not None else memory,
    )


def _norm_promotes() -> bool:
    """Say whether the torch installed here promotes in ``nn.RMSNorm``; loads nothing of it."""
    return norm_promotes(version("torch"))


def _document(asked: PlanRequest, request: Request, plans: list[FixPlan], choices: list[Choice]) -> dict[str, object]:
    return {
        "model": request.config.name,
        "source": request.config.source,
        "parameters": parameter_count(request.config),
        "dtype": request.dtype,
        "kv_dtype": request.kv_dtype,
        "batch": request.batch,
        "rows": request.rows,
        "length": request.length,
        "tokens": request.tokens,
        "device": asked.device,
        "device_memory_bytes": request.device_memory_bytes,
        "fixes": [plan.to_dict() for plan in plans],
        "formats": [choice.to_dict() for choice in choices],
    }
