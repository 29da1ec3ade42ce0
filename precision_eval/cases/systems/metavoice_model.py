"""MetaVoice-1B's first stage: a decoder with learned positions, a speaker, guidance and a static cache; imports torch.

Written from what metavoiceio/metavoice-src computes in ``fam/llm/fast_model.py`` (decoder) and
``fam/llm/fast_inference_utils.py`` (sampler). Conventions: B = 2 rows, the first with the speaker embedding, the second
without; s positions of the call; H heads of D; S slots; V tokens. No projection has a bias.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import nn
from torch.nn import functional as F

from precision_eval.cases.base import BuiltCase
from precision_eval.cases.systems import metavoice as constants
from precision_eval.cases.systems.metavoice import GUIDANCE_ROWS, MetaVoiceSize
from precision_eval.cases.systems.system import KeysValues, System, drawing, unfilled_linear, widened

COLDEST = 1e-5
"""Lowest temperature that the sampler divides by."""


class StaticCache(KeysValues):
    """Keys and values of all slots."""

    def __init__(self, key: torch.Tensor, value: torch.Tensor, *, first_slot: int | None) -> None:
        super().__init__(key, value)
        self.first_slot = first_slot

    def write(self, positions: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Write the call's own keys and values, in place."""
        if self.first_slot is None:
            self.key[:, :, positions] = key
            self.value[:, :, positions] = value
        else:
            end = self.first_slot + key.shape[2]
            self.key[:, :, self.first_slot : end] = key
            self.value[:, :, self.first_slot : end] = value


class RootMeanSquareNorm(nn.Module):
    """x / rms(x), in float32 and brought back to x's dtype, times a gain in the gain's dtype."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim, device="meta"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = widened(x)
        scale = torch.rsqrt((wide * wide).mean(dim=-1, keepdim=True) + constants.NORM_EPS)
        return (wide * scale).type_as(x) * self.weight


class MetaVoiceAttention(nn.Module):
    """Multi-head attention to every slot of a static cache, under a boolean mask."""

    def __init__(self, size: MetaVoiceSize, cache: StaticCache) -> None:
        super().__init__()
        self.heads = size.heads
        self.cache = cache
        self.query_key_value = unfilled_linear(size.dim, 3 * size.dim)
        self.output = unfilled_linear(size.dim, size.dim)

    def forward(self, x: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        parts = self.query_key_value(x).chunk(3, dim=-1)
        # view and not unflatten, which Dynamo leaves the graph for where a function mode is in force
        by_head = (*x.shape[:-1], self.heads, -1)
        query, key, value = (part.view(by_head).transpose(1, 2) for part in parts)  # (B, H, s, D)
        self.cache.write(positions, key, value)
        mixed = F.scaled_dot_product_attention(query, self.cache.key, self.cache.value, attn_mask=mask)
        return self.output(mixed.transpose(1, 2).flatten(-2))


class MetaVoiceFeedForward(nn.Module):
    """SwiGLU: down(silu(gate x) · up x)."""

    def __init__(self, size: MetaVoiceSize) -> None:
        super().__init__()
        self.gate = unfilled_linear(size.dim, size.hidden)
        self.up = unfilled_linear(size.dim, size.hidden)
        self.down = unfilled_linear(size.hidden, size.dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    """Attention and feed-forward, each on the normed stream and added to it."""

    def __init__(self, size: MetaVoiceSize, cache: StaticCache) -> None:
        super().__init__()
        self.attention_norm = RootMeanSquareNorm(size.dim)
        self.attention = MetaVoiceAttention(size, cache)
        self.feed_forward_norm = RootMeanSquareNorm(size.dim)
        self.feed_forward = MetaVoiceFeedForward(size)

    def forward(self, x: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Add both branches to the stream, (B, s, H·D)."""
        x = x + self.attention(self.attention_norm(x), positions, mask)
        return x + self.feed_forward(self.feed_forward_norm(x))


class MetaVoice(System):
    """The decoder and its sampler. Its weights have no memory until a state dict is assigned."""

    not_landed = "no fix landed in metavoiceio/metavoice-src; #108, #128, #172, #187 and #203 are open"
    causal_mask: torch.Tensor
    has_speaker: torch.Tensor

    def __init__(self, size: MetaVoiceSize, caches: Sequence[StaticCache]) -> None:
        super().__init__()
        self.size = size
        self.token_embedding = nn.Embedding(size.vocabulary, size.dim, device="meta")
        self.position_embedding = nn.Embedding(size.slots, size.dim, device="meta")
        self.speaker_projection = unfilled_linear(size.speaker_dim, size.dim)
        self.layers = nn.ModuleList(Layer(size, cache) for cache in caches)
        self.norm = RootMeanSquareNorm(size.dim)
        self.head = unfilled_linear(size.dim, size.vocabulary)
        mask = torch.ones(size.slots, size.slots, dtype=torch.bool).tril()
        self.register_buffer("causal_mask", mask, persistent=False)
        rows = torch.arange(GUIDANCE_ROWS) == 0
        self.register_buffer("has_speaker", rows[:, None, None], persistent=False)  # (B, 1, 1)

    def forward(
        self, tokens: torch.Tensor, speaker: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run one call: it writes the slots of its positions, and is repeatable."""
        mask = self.causal_mask[None, None, positions]  # (1, 1, s, S)
        x = (
            self.token_embedding(tokens)
            + self.position_embedding(positions)
            + self.speaker_projection(speaker) * self.has_speaker
        )  # (B, s, H·D)
        for layer in self.layers:
            x = layer(x, positions, mask)
        logits = self.head(self.norm(x))
        return logits, guided_probabilities(logits, precision=speaker.dtype)


def _spread(name: str, shape: torch.Size) -> float:
    """Standard deviation of a weight; see the constants' comment."""
    fixed = {
        "token_embedding.weight": constants.TOKEN_STD,
        "position_embedding.weight": constants.POSITION_STD,
        "speaker_projection.weight": constants.SPEAKER_STD,  # of an embedding of unit norm, so not per input
        "head.weight": constants.LOGIT_STD / math.sqrt(shape[-1]),
    }
    return fixed.get(name, 1 / math.sqrt(shape[-1]))


def drawn_weights(model: MetaVoice, generator: torch.Generator, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Draw every weight in float32 and cast it, one at a time."""
    weights = {}
    for name, parameter in model.named_parameters():
        drawn = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1:
            drawn = 1 + constants.NORM_GAIN_STD * drawn
        else:
            drawn *= _spread(name, parameter.shape)
        if name.endswith("query_key_value.weight"):
            drawn[: model.size.dim] *= constants.QUERY_STD
        weights[name] = drawn.to(dtype)
    return weights


def trimmed(logits: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Put every token outside the nucleus at minus infinity."""
    ascending, order = torch.sort(logits)
    mass = ascending.softmax(dim=-1).cumsum(dim=-1)
    dropped = mass <= 1 - top_p
    dropped[-1:] = False  # a slice is filled; one element would be copied from the host, which no graph captures
    return logits.masked_fill(dropped.scatter(0, order, dropped), -math.inf)


def guided_probabilities(logits: torch.Tensor, *, precision: torch.dtype) -> torch.Tensor:
    """Probabilities of the next token: guidance, temperature, top-p, softmax, all in the dtypes given."""
    guidance, temperature, top_p = (
        torch.full((), value, dtype=precision, device=logits.device)
        for value in (constants.GUIDANCE, constants.TEMPERATURE, constants.TOP_P)
    )
    conditional, unconditional = logits[0, -1], logits[1, -1]
    guided = guidance * conditional + (1 - guidance) * unconditional
    return trimmed(guided / temperature.clamp_min(COLDEST), top_p).softmax(dim=-1)


class MetaVoiceUnderAutocast(System):
    """Enter autocast, without gradients, and call the decoder, as metavoice-src's ``fam/llm/sample.py`` does."""

    not_landed = (
        "nothing landed for metavoiceio/metavoice-src #27, which is open: float16 became the default on compute "
        "capability 7 and below, which is the state as shipped here"
    )

    def __init__(self, model: MetaVoice, *, autocast_dtype: str) -> None:
        super().__init__()
        self.model = model
        self.autocast_dtype = autocast_dtype

    def forward(
        self, tokens: torch.Tensor, speaker: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad(), torch.autocast(tokens.device.type, dtype=getattr(torch, self.autocast_dtype)):
            logits, probabilities = self.model(tokens, speaker, positions)
        return logits, probabilities


def build_metavoice(
    size_name: str, *, device: str, seed: int, prefill: bool, indexed: bool, weight_dtype: str, speaker_dtype: str
) -> BuiltCase:
    size = constants.SIZES[size_name]
    with drawing(size_name, device, seed) as generator:
        model, inputs = _drawn(
            size, generator, prefill=prefill, indexed=indexed, weight_dtype=weight_dtype, speaker_dtype=speaker_dtype
        )
    model = model.eval().requires_grad_(False).to(device)
    return BuiltCase(model, tuple(tensor.to(device) for tensor in inputs))


def _drawn(
    size: MetaVoiceSize,
    generator: torch.Generator,
    *,
    prefill: bool,
    indexed: bool,
    weight_dtype: str,
    speaker_dtype: str,
) -> tuple[MetaVoice, tuple[torch.Tensor, ...]]:
    positions = torch.arange(size.prompt) if prefill else torch.tensor([size.filled - 1])
    used = (torch.arange(size.slots) < (0 if prefill else size.filled))[:, None]  # (slots, 1)
    shape = (GUIDANCE_ROWS, size.heads, size.slots, size.head_dim)
    first_slot = None if indexed else (0 if prefill else size.filled - 1)
    caches = []
    for _ in range(size.layers):
        key, value = (
            (torch.randn(shape, generator=generator) * used).to(getattr(torch, constants.CACHE_DTYPE)) for _ in range(2)
        )
        caches.append(StaticCache(key, value, first_slot=first_slot))
    model = MetaVoice(size, caches)
    model.load_state_dict(drawn_weights(model, generator, getattr(torch, weight_dtype)), assign=True)
    tokens = torch.randint(size.vocabulary, (1, len(positions)), generator=generator).repeat(GUIDANCE_ROWS, 1)
    speaker = torch.randn((1, size.speaker_dim), generator=generator).relu()  # the encoder ends in ReLU and a norm
    speaker = (speaker / speaker.norm()).to(getattr(torch, speaker_dtype))
    return model, (tokens, speaker, positions)


def build_metavoice_t4(size: str, *, device: str, seed: int) -> BuiltCase:
    """Build a decode step as ``sample.py`` runs it on a T4."""
    state = constants.T4_STATE
    stored = {"weight_dtype": state["weights"], "speaker_dtype": state["speaker"]}
    built = build_metavoice(size, device=device, seed=seed, prefill=False, indexed=False, **stored)
    decoder = cast(MetaVoice, built.model.requires_grad_(True))
    return BuiltCase(MetaVoiceUnderAutocast(decoder, autocast_dtype=state["autocast"]).eval(), built.inputs)
