"""Time and label embedding of imaginAIry's video model, and a variant that casts in the wrong place; imports torch.

Written from what brycedrennan/imaginAIry computes in ``imaginairy/modules/sgm/diffusionmodules/video_model.py`` up to
``emb``, and in ``util.py`` (``timestep_embedding``). Conventions: R rows, C channels of the sinusoidal embedding, E of
the output; a timestep is a number in the sampler's own units, a tick 2⁻²⁰ of one.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from precision_eval.cases.base import BuiltCase
from precision_eval.cases.systems import imaginairy as constants
from precision_eval.cases.systems.imaginairy import TICKS_PER_STEP, TimeEmbedSize
from precision_eval.cases.systems.system import System, widened


def timestep_embedding(timesteps: torch.Tensor, channels: int) -> torch.Tensor:
    """Sinusoidal embedding: cosines, then sines, of the timestep at geometrically spaced frequencies."""
    wide = widened(timesteps)
    half = channels // 2
    steps = torch.arange(half, dtype=wide.dtype, device=wide.device)
    frequencies = torch.exp(-math.log(constants.MAX_PERIOD) * steps / half)
    angles = wide[:, None] * frequencies[None]  # (R, C/2)
    return torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1)


def _two_linears(inputs: int, outputs: int) -> nn.Sequential:
    """Make Linear, SiLU, Linear without memory; weights are assigned later."""
    return nn.Sequential(
        nn.Linear(inputs, outputs, device="meta"), nn.SiLU(), nn.Linear(outputs, outputs, device="meta")
    )


class TimeEmbedding(System):
    """Embedding of timestep and labels, summed."""

    landed: str | None = (
        "brycedrennan/imaginAIry PR #443 (d3106fc, 14.0.4): autocast on again, on CUDA only; the float32 embedding is "
        "left as it was"
    )

    def __init__(self, size: TimeEmbedSize) -> None:
        super().__init__()
        self.channels = size.channels
        self.time_embed = _two_linears(size.channels, size.embedding)
        self.label_embed = _two_linears(3 * size.label_channels, size.embedding)

    @property
    def weight_dtype(self) -> torch.dtype:
        """What the Linears are stored in."""
        return self.label_embed[0].weight.dtype  # type: ignore[return-value]

    def _landed_autocast(self, device_type: str) -> AbstractContextManager[object]:
        """Autocast where the fix that landed has it; never one that is off, which would end an outer one."""
        return torch.autocast("cuda") if self.is_upstream and device_type == "cuda" else nullcontext()

    def embedded(self, timesteps: torch.Tensor) -> torch.Tensor:
        """Embed timesteps as the source does, with no cast."""
        return timestep_embedding(timesteps, self.channels)

    def forward(self, ticks: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        wide = torch.promote_types(self.weight_dtype, torch.float32)
        timesteps = ticks.to(wide) / TICKS_PER_STEP  # exact: a power of two, and 24 bits at most
        with self._landed_autocast(ticks.device.type):
            return self.time_embed(self.embedded(timesteps)) + self.label_embed(labels)


class CastFirstTimeEmbedding(TimeEmbedding):
    """The fault: the timestep is rounded to the weights' dtype, and only then embedded."""

    landed = None
    not_landed = "the cast before the embedding is a fault to be measured, and no state of the project"

    def embedded(self, timesteps: torch.Tensor) -> torch.Tensor:
        return super().embedded(timesteps.to(self.weight_dtype)).to(self.weight_dtype)

    def forward(self, ticks: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return super().forward(ticks, labels.to(self.weight_dtype))


def drawn_weights(model: TimeEmbedding, generator: torch.Generator, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Draw weights that keep activations of order one."""
    drawn = {}
    for name, parameter in model.named_parameters():
        values = torch.randn(parameter.shape, generator=generator)
        std = constants.WEIGHT_STD * parameter.shape[1] ** -0.5 if parameter.ndim == 2 else constants.BIAS_STD
        drawn[name] = (values * std).to(dtype)
    return drawn


def build_time_embed(size: str, *, device: str, seed: int, cast_first: bool) -> BuiltCase:
    widths = constants.SIZES[size]
    generator = torch.Generator().manual_seed(seed)
    model = (CastFirstTimeEmbedding if cast_first else TimeEmbedding)(widths)
    model.load_state_dict(drawn_weights(model, generator, getattr(torch, constants.WEIGHT_DTYPE)), assign=True)
    label = timestep_embedding(torch.tensor(constants.LABELS), widths.label_channels).flatten()  # (3 × label_channels,)
    labels = label.repeat(2 * widths.frames, 1)
    ticks = torch.tensor(constants.timestep_ticks(widths.frames))
    return BuiltCase(model.eval().requires_grad_(False).to(device), (ticks.to(device), labels.to(device)))
