"""Draws what Dia's modules hold: weights, and the caches of a step in the middle of a text; imports torch.

Conventions: all is drawn in float32 on the CPU, in the order in which the model lists it, and then cast to the dtype
of the place it goes to.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from precision_eval.cases.systems import dia as constants
from precision_eval.cases.systems.dia_caches import AppendingCache, SliceCache
from precision_eval.cases.systems.dia_model import Attention, CrossAttention, Dense, DiaDecoder, DiaEncoder

LONG_PRODUCT = 1 << 30
"""Multiply-adds of a projection from which it is computed in float32 while building; only the size `full` has such."""


def attention_std(head_dim: int) -> float:
    """Spread of an entry of a query or a key, so that their product over a head spreads as it should."""
    return math.sqrt(constants.ATTENTION_LOGIT_STD / constants.ATTENTION_SCALE) * head_dim**-0.25


def _spreads(model: nn.Module) -> dict[int, float]:
    """Spread of each projection's and embedding's weight, by the identity of the parameter."""
    found: dict[int, float] = {}
    for module in model.modules():
        if isinstance(module, Dense):
            found[id(module.weight)] = module.fan_in**-0.5
        elif isinstance(module, nn.Embedding):
            found[id(module.weight)] = constants.CHANNELS**-0.5 if isinstance(model, DiaDecoder) else 1.0
    for module in model.modules():
        if isinstance(module, Attention):
            for projection in (module.query, module.key):
                found[id(projection.weight)] *= attention_std(projection.weight.shape[-1])
    if isinstance(model, DiaDecoder):
        found[id(model.head.weight)] *= constants.LOGIT_STD
    return found


@torch.no_grad()
def fill_weights(model: DiaDecoder | DiaEncoder, generator: torch.Generator) -> None:
    """Draw every parameter, in place."""
    spreads = _spreads(model)
    for parameter in model.parameters():
        drawn = torch.randn(parameter.shape, generator=generator)
        std = spreads.get(id(parameter))
        parameter.copy_(1.0 + constants.NORM_GAIN_STD * drawn if std is None else std * drawn)
        parameter.requires_grad_(False)


@torch.no_grad()
def fill_caches(model: DiaDecoder, generator: torch.Generator, *, padding: torch.Tensor) -> None:
    """Draw the keys and values of all filled slots, and compute those of a drawn text."""
    size = model.size
    hidden = torch.randn(constants.GUIDANCE_ROWS, size.text_length, size.encoder_width, generator=generator)
    gain = 1.0 + constants.NORM_GAIN_STD * torch.randn(size.encoder_width, generator=generator)
    last_norm = nn.RMSNorm(size.encoder_width, eps=constants.NORM_EPS, dtype=torch.float32)
    last_norm.weight.copy_(gain)
    text = last_norm(hidden.to(model.compute_dtype))
    model.text_mask[:] = padding
    for layer in model.blocks:
        _remember(layer.cross_attention, text)
        cache = layer.self_attention.cache
        assert cache is not None
        _fill_cache(cache, generator, filled=size.filled, heads=size.cache_heads)


def _remember(attention: CrossAttention, text: torch.Tensor) -> None:
    """Have cross attention compute the text's keys and values; in float32 and rounded once where that is long."""
    projections = (attention.key, attention.value)
    before = [projection.in_float32 for projection in projections]
    for projection in projections:
        if text.shape[:-1].numel() * projection.weight.numel() >= LONG_PRODUCT:
            projection.in_float32 = True
    attention.remember(text)
    for projection, was in zip(projections, before, strict=True):
        projection.in_float32 = was


def _fill_cache(cache: SliceCache | AppendingCache, generator: torch.Generator, *, filled: int, heads: int) -> None:
    """Draw the filled slots of ``heads`` heads; a cache with more heads holds repeated ones."""
    batch, cache_heads, _, head_dim = cache.key.shape
    for buffer, std in ((cache.key, attention_std(head_dim)), (cache.value, 1.0)):
        drawn = torch.randn((batch, heads, filled, head_dim), generator=generator) * std
        buffer[:, :, :filled] = drawn.repeat_interleave(cache_heads // heads, dim=1)
