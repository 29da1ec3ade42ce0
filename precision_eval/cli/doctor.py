"""What ``precision-eval doctor`` does: get a model, examine it, print what was found.

Conventions: exit code 0 where there is no fault, 1 where there is one, 2 for bad input.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from precision_eval.cli import EXIT_VERDICT
from precision_eval.core.errors import ParameterError

if TYPE_CHECKING:
    from precision_eval.diagnose.doctor.targets import Target


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to examine, and how far."""

    factory: str | None
    hf: str | None
    case: str | None
    size: str | None
    device: str
    dtype: str
    fixes: bool
    latency: bool
    compiled: bool
    budget_s: float
    seed: int
    as_json: bool


def doctor_command(request: Request) -> None:
    """Examine a model and print what was found."""
    target = _target(request)
    from precision_eval.diagnose.doctor.examination import examine

    found = examine(
        target.model,
        *target.inputs,
        fixes=request.fixes,
        latency=request.latency,
        compiled=request.compiled,
        budget_s=request.budget_s,
    )
    if request.as_json:
        print(json.dumps({"target": target.name, **found.to_dict()}, indent=1, allow_nan=False))
    else:
        from rich.console import Console

        from precision_eval.diagnose.doctor.text import rendered

        Console(highlight=False).print(rendered(found), crop=False)
    if found.faults:
        raise typer.Exit(EXIT_VERDICT)


def _target(request: Request) -> Target:
    given = [name for name in ("factory", "hf", "case") if getattr(request, name)]
    if len(given) != 1:
        found = "nothing" if not given else " and ".join(given)
        raise ParameterError(f"doctor was given {found}; give one of package.module:factory, --hf and --case")
    from precision_eval.core.environment import check_device
    from precision_eval.diagnose.doctor import targets

    if request.factory:
        return targets.from_factory(request.factory)
    check_device(request.device)
    if request.hf:
        return targets.from_checkpoint(request.hf, dtype=request.dtype, device=request.device, seed=request.seed)
    assert request.case
    return targets.from_case(request.case, size=request.size, device=request.device, seed=request.seed)
