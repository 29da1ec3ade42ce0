"""Where a model comes from on the command line: a factory, a checkpoint, a case; loads torch when asked.

Conventions: a target is a model and its inputs, a tuple or a dict, as
:func:`~precision_eval.diagnose.doctor.examine` takes them. A factory is a callable without required parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_eval.cases.own import own_case

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class DoctorTarget:
    """A model and what it is called with."""

    name: str
    model: nn.Module
    inputs: tuple[Any, ...]


def from_factory(path: str) -> DoctorTarget:
    """Call a factory."""
    own = own_case(path)
    return DoctorTarget(path, own.module(), own.arguments())


def from_case(case_id: str, *, size: str | None, device: str, seed: int) -> DoctorTarget:
    """Build a case of this suite, as shipped; without a size at its smallest."""
    from precision_eval.cases.systems import case_by_id

    case = case_by_id(case_id)
    built = case.build(size or case.sizes[0], device=device, seed=seed)
    return DoctorTarget(case_id, built.model, tuple(built.inputs))


def from_checkpoint(path_or_name: str, *, dtype: str, device: str, seed: int) -> DoctorTarget:
    """Load a checkpoint of transformers or diffusers, and make inputs for it, in its own dtype."""
    import torch

    from precision_eval.cases.adapters.generation import generation_case
    from precision_eval.fixes.outside import in_dtype

    own = generation_case(path_or_name, dtype=dtype or None, seed=seed)
    model = own.module().to(device)
    held = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    given = in_dtype(own.given(), held)
    inputs = {name: value.to(device) if torch.is_tensor(value) else value for name, value in given.items()}
    return DoctorTarget(Path(path_or_name).name, model, (inputs,))
