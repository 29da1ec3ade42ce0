"""Weights of the T5 encoder, with the outliers that make float16 overflow; imports torch.

:mod:`.cogvideo_t5` says what the outliers are, where they were read of, and which sizes were chosen. Channels of the
residual are in this order: outlier channels, sink channels, all others (*ordinary*). The first neurons of each
feed-forward are the outlier neurons.
"""

from __future__ import annotations

import math

import torch

from precision_eval.cases.systems.cogvideo_t5 import (
    BUCKETS,
    GAIN_STD,
    GATE,
    KEPT_WIDE,
    OUTLIER,
    OUTLIER_CHANNELS,
    OUTLIER_NEURONS,
    POSITION_STD,
    RESIDUAL_STD,
    SINK,
    SINK_CHANNELS,
    UPDATE_STD,
    T5Size,
)
from precision_eval.cases.systems.cogvideo_t5_model import T5Encoder

_ORDINARY = OUTLIER_CHANNELS + SINK_CHANNELS  # the first ordinary channel
_PRODUCT = GATE * GATE  # of the outlier neurons
_VALUE_GAIN = 2.0  # attention averages values; the output projection makes up for it
_PRODUCT_RMS = 0.6  # of gelu(a)·b for independent a and b of unit variance


def _update_std(size: T5Size) -> float:
    """Standard deviation of what one sublayer adds to an ordinary channel."""
    return UPDATE_STD * RESIDUAL_STD / math.sqrt(2 * size.layers)


def _gains(size: T5Size, generator: torch.Generator, *, first: bool, final: bool) -> torch.Tensor:
    """Gains of one norm: ordinary channels leave it with unit variance, outliers with magnitude one."""
    ordinary, sink = RESIDUAL_STD, SINK * RESIDUAL_STD
    outlier = ordinary if first else OUTLIER
    power = OUTLIER_CHANNELS * outlier**2 + SINK_CHANNELS * sink**2 + (size.dim - _ORDINARY) * ordinary**2
    rms = math.sqrt(power / size.dim)
    gains = rms / ordinary * (1.0 + GAIN_STD * torch.randn(size.dim, generator=generator))
    gains[:OUTLIER_CHANNELS] = rms / outlier
    gains[OUTLIER_CHANNELS:_ORDINARY] = rms / (sink if final else ordinary)
    return gains


def _gate(size: T5Size, generator: torch.Generator) -> torch.Tensor:
    """Gate or up projection: the outlier neurons read the sinks and nothing else."""
    weight = torch.randn((size.hidden, size.dim), generator=generator) * size.dim**-0.5
    weight[:OUTLIER_NEURONS] = 0.0
    weight[:OUTLIER_NEURONS, OUTLIER_CHANNELS:_ORDINARY] = GATE / (SINK_CHANNELS * SINK)
    weight[OUTLIER_NEURONS:, :_ORDINARY] = 0.0
    return weight


def _wo(size: T5Size, generator: torch.Generator, *, first: bool) -> torch.Tensor:
    """Output projection: what both kinds of neurons write has the same variance; outliers come from the first block."""
    update = _update_std(size)
    weight = torch.randn((size.dim, size.hidden), generator=generator)
    weight[:, :OUTLIER_NEURONS] *= update / (_PRODUCT * math.sqrt(OUTLIER_NEURONS))
    weight[:, OUTLIER_NEURONS:] *= update / (_PRODUCT_RMS * math.sqrt(size.hidden - OUTLIER_NEURONS))
    weight[:_ORDINARY] = 0.0
    if first:
        weight[:OUTLIER_CHANNELS, :OUTLIER_NEURONS] = OUTLIER / (OUTLIER_NEURONS * _PRODUCT)
    return weight


def _projection(size: T5Size, generator: torch.Generator, kind: str) -> torch.Tensor:
    """Attention's projections: they read ordinary channels, and write them."""
    inner = size.heads * size.head_dim
    if kind == "o":
        std = _update_std(size) * _VALUE_GAIN * inner**-0.5
        weight = torch.randn((size.dim, inner), generator=generator) * std
        weight[:_ORDINARY] = 0.0
        return weight
    std = (size.dim * size.head_dim) ** -0.5 if kind == "q" else size.dim**-0.5  # no 1/√D: T5 has it in q's weights
    weight = torch.randn((inner, size.dim), generator=generator) * std
    weight[:, :_ORDINARY] = 0.0
    return weight


def _embedding(size: T5Size, generator: torch.Generator) -> torch.Tensor:
    weight = RESIDUAL_STD * torch.randn((size.vocabulary, size.dim), generator=generator)
    weight[:, OUTLIER_CHANNELS:_ORDINARY] = SINK * RESIDUAL_STD
    return weight


def _drawn(name: str, size: T5Size, generator: torch.Generator) -> torch.Tensor:
    """Draw one parameter by its name in the model."""
    parts = name.split(".")
    kind, block = parts[-2], int(parts[1]) if parts[0] == "blocks" else size.layers
    if kind == "embedding":
        return _embedding(size, generator)
    if kind == "position_bias":
        return POSITION_STD * torch.randn((BUCKETS, size.heads), generator=generator)
    if kind.endswith("norm"):
        return _gains(size, generator, first=block == 0, final=kind == "final_norm")
    if kind in ("gate", "up"):
        return _gate(size, generator)
    if kind == KEPT_WIDE:
        return _wo(size, generator, first=block == 0)
    return _projection(size, generator, kind)


def drawn_weights(
    model: T5Encoder, size: T5Size, generator: torch.Generator, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Draw the encoder's weights, one at a time, so that the full size needs no second copy of all of them."""
    drawn = {}
    for name, _ in model.named_parameters():
        values = _drawn(name, size, generator)
        kept = dtype is torch.float16 and KEPT_WIDE in name.split(".")
        drawn[name] = values if kept else values.to(dtype)
    return drawn
