"""A model with the inputs of all its units, its reference, and the drift of an output; imports torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from precision_eval.cases.systems.system import System
from precision_eval.core.errors import ParameterError
from precision_eval.trace.sites import Rule


def float64_twin(model: nn.Module) -> nn.Module:
    """Copy a model with everything floating in float64."""
    return model.in_float64() if isinstance(model, System) else copy.deepcopy(model).double()


@dataclass(frozen=True)
class Subject:
    """A model as it ships, ready to be mapped."""

    model: nn.Module
    inputs: tuple[Any, ...]
    rules: tuple[Rule, ...]
    units: int
    rows: Callable[[torch.Tensor], torch.Tensor]

    @cached_property
    def twin(self) -> nn.Module:
        """The float64 twin of the model."""
        return float64_twin(self.model)

    @property
    def wide_inputs(self) -> tuple[Any, ...]:
        """The inputs, floating ones in float64."""
        return tuple(x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in self.inputs)

    @torch.no_grad()
    def reference(self) -> torch.Tensor:
        """Run the model in float64, by itself and on no tape."""
        found: torch.Tensor = copy.deepcopy(self.twin)(*self.wide_inputs)
        return found

    def drift(self, found: torch.Tensor, reference: torch.Tensor) -> np.ndarray:
        """Relative error of each unit; see :func:`unit_drift`."""
        return unit_drift(self.rows(found), self.rows(reference))


def unit_drift(found: torch.Tensor, reference: torch.Tensor) -> np.ndarray:
    """Relative error ‖found − reference‖ / ‖reference‖ over the features, mean over the positions."""
    if found.shape != reference.shape or reference.dtype is not torch.float64 or not bool(reference.isfinite().all()):
        raise ParameterError(
            f"found {tuple(found.shape)}, reference {tuple(reference.shape)} of {reference.dtype}; expected "
            f"outputs of the same "
            "call, the reference's finite and in float64"
        )
    relative = (found.double() - reference).norm(dim=-1) / reference.norm(dim=-1)  # (units, positions)
    drift: np.ndarray = relative.mean(dim=-1).cpu().numpy()
    return np.where(np.isfinite(drift), drift, np.inf)
