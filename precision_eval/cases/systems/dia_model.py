"""Dia's decoder and encoder as nari-labs/dia computes them in ``dia/layers.py``; imports torch.

Conventions: B = 2 guidance rows; T positions of the call (1 in decode); H query heads on K key and value heads of D; S
slots or bytes; W the width. Projections contract trailing axes with ``tensordot``, have no bias, and give their result
back in their input's dtype. A part looks at ``is_upstream`` together with the pull request that its state got.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, Self, cast

import torch
from torch import nn
from torch.nn import functional as F

from precision_eval.cases.base import BuiltCase
from precision_eval.cases.systems import dia as constants
from precision_eval.cases.systems.dia import DecoderSize, DiaState, EncoderSize
from precision_eval.cases.systems.system import KeysValues, System, drawing, widened
from precision_eval.fixes.storage import store_as


class SliceCache(KeysValues):
    """The static cache of d4790dd: the slot is written by slice assignment, which casts in silence."""

    def extended(
        self, key: torch.Tensor, value: torch.Tensor, position: int, heads: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the step's own slot, and give a view of all slots filled."""
        self.key[:, :, position : position + 1] = key
        self.value[:, :, position : position + 1] = value
        return self.key[:, :, : position + 1], self.value[:, :, : position + 1]


class AppendingCache(KeysValues):
    """The cache before d4790dd: one key and value per query head, the step's own appended in a copy."""

    def extended(
        self, key: torch.Tensor, value: torch.Tensor, position: int, heads: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append the step's own slot to a copy of those before it, and write it."""
        key, value = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (key, value))
        joined = tuple(
            torch.cat((past[:, :, :position], x), dim=2) for past, x in ((self.key, key), (self.value, value))
        )
        self.key[:, :, position : position + 1] = key
        self.value[:, :, position : position + 1] = value
        return joined[0], joined[1]


LANDED = {"127": "nari-labs/dia 4a9e29b (PR #127)", "45": "nari-labs/dia 9d0e434 (PR #45)"}


class DiaPart(System):
    """A module that knows its state and whether what landed after it is in force."""

    def __init__(self, state: DiaState) -> None:
        super().__init__()
        self.state = state
        self.landed = LANDED[state.fix]

    def after(self, fix: str) -> bool:
        """Whether the part is in the state after that pull request."""
        return self.is_upstream and self.state.fix == fix

    def settled(self, x: torch.Tensor, compute: torch.dtype) -> torch.Tensor:
        """Bring a norm's output to the compute dtype, as PR #127 does; before it, leave what torch returned."""
        return x.to(compute) if self.after("127") else x


class Dense(nn.Module):
    """A projection that contracts the last axes of its input; no bias."""

    def __init__(self, inputs: tuple[int, ...], outputs: tuple[int, ...], state: DiaState) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs + outputs, dtype=getattr(torch, state.weights)))
        self.axes = len(inputs)
        self.fan_in = prod(inputs)
        self.in_float32 = state.fix == "45"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Project (…, *inputs) to (…, *outputs), in the input's dtype."""
        weight = widened(self.weight) if self.in_float32 else self.weight
        return torch.tensordot(x.to(weight.dtype), weight, dims=self.axes).to(x.dtype)


class Rotary(DiaPart):
    """Rotary position embedding: the two halves of a head are the coordinates that are turned."""

    def __init__(self, head_dim: int, state: DiaState) -> None:
        super().__init__(state)
        exponent = torch.arange(head_dim // 2, dtype=torch.float32) * 2.0 / head_dim
        self.timescale = constants.LONGEST_TIMESCALE**exponent  # (D/2,)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """Move the timescales with the module and follow its dtype, but never below float32."""
        moved = fn(self.timescale)
        self.timescale = self.timescale.to(moved.device, torch.promote_types(moved.dtype, torch.float32))
        return super()._apply(fn, recurse)

    def forward(self, x: torch.Tensor, positions: torch.Tensor, compute: torch.dtype) -> torch.Tensor:
        angles = positions[:, None, None] / self.timescale  # (T, 1, D/2)
        sine, cosine = angles.sin(), angles.cos()
        if self.after("127"):
            first, second = widened(x).chunk(2, dim=-1)
        else:
            sine, cosine = sine.to(x.dtype), cosine.to(x.dtype)
            first, second = x.chunk(2, dim=-1)
        turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
        return turned.to(compute) if self.after("127") else turned


class DiaAttention(DiaPart):
    """What self and cross attention share: four projections, the rotary embedding, and the call."""

    def __init__(
        self, state: DiaState, *, width: int, source_width: int, heads: int, key_heads: int, head_dim: int
    ) -> None:
        super().__init__(state)
        self.scale = constants.ATTENTION_SCALE
        self.query = Dense((width,), (heads, head_dim), state)
        self.key = Dense((source_width,), (key_heads, head_dim), state)
        self.value = Dense((source_width,), (key_heads, head_dim), state)
        self.output = Dense((heads, head_dim), (width,), state)
        self.rotary = Rotary(head_dim, state)

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Attend with (B, H, T, D) queries to (B, K, S, D) keys and values; (B, T, W) in the query's dtype."""
        if self.after("45"):
            key, value = key.to(query.dtype), value.to(query.dtype)
        mixed = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=self.scale, enable_gqa=query.shape[1] != key.shape[1]
        )
        return self.output(mixed.transpose(1, 2))


class SelfAttention(DiaAttention):
    """Self attention, in the decoder over a cache."""

    def __init__(self, size: DecoderSize | EncoderSize, state: DiaState) -> None:
        key_heads = size.cache_heads if isinstance(size, DecoderSize) else size.heads
        super().__init__(
            state, width=size.width, source_width=size.width, heads=size.heads, key_heads=key_heads,
            head_dim=size.head_dim,
        )  # fmt: skip
        self.cache: SliceCache | AppendingCache | None = None
        self.position = 0
        if isinstance(size, DecoderSize):
            appends = state.fix == "45"
            shape = (constants.GUIDANCE_ROWS, size.heads if appends else key_heads, size.slots, size.head_dim)
            empty = [torch.zeros(shape, dtype=getattr(torch, state.cache)) for _ in range(2)]
            self.cache = AppendingCache(*empty) if appends else SliceCache(*empty)
            self.position = size.filled - 1

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None, compute: torch.dtype
    ) -> torch.Tensor:
        query = self.rotary(self.query(x), positions, compute).transpose(1, 2)  # (B, H, T, D)
        key = self.rotary(self.key(x), positions, compute).transpose(1, 2)  # (B, K, T, D)
        value = self.value(x).transpose(1, 2)
        if self.cache is not None:
            key, value = self.cache.extended(key, value, self.position, query.shape[1])
        return self.attend(query, key, value, mask).to(x.dtype)


class CrossAttention(DiaAttention):
    """Attention to the text, whose keys and values were computed before the first step."""

    def __init__(self, size: DecoderSize, state: DiaState) -> None:
        super().__init__(
            state, width=size.width, source_width=size.encoder_width, heads=size.cross_heads,
            key_heads=size.cross_heads, head_dim=size.cross_head_dim,
        )  # fmt: skip
        self.is_rotary = size.cross_rotary
        shape = (constants.GUIDANCE_ROWS, size.cross_heads, size.text_length, size.cross_head_dim)
        self.cache = KeysValues(*(torch.zeros(shape, dtype=getattr(torch, state.compute)) for _ in range(2)))

    def remember(self, text: torch.Tensor) -> None:
        """Compute keys and values of the encoder's output, (B, S, encoder width), in whatever dtype it has."""
        key = self.key(text)
        if self.is_rotary:
            key = self.rotary(key, torch.arange(text.shape[1], device=text.device), text.dtype)
        self.cache.key = key.transpose(1, 2).contiguous()
        self.cache.value = self.value(text).transpose(1, 2).contiguous()

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, compute: torch.dtype
    ) -> torch.Tensor:
        """Attend to the text: x (B, T, W), positions (T,), mask (B, 1, T, S) True where the text is in use."""
        query = self.query(x)
        if self.is_rotary:
            query = self.rotary(query, positions, compute)
        return self.attend(query.transpose(1, 2), self.cache.key, self.cache.value, mask).to(x.dtype)


class DiaFeedForward(DiaPart):
    """down(silu(gate x) · up x), the product brought to the compute dtype."""

    def __init__(self, width: int, hidden: int, state: DiaState) -> None:
        super().__init__(state)
        self.gate_up = Dense((width,), (2, hidden), state)
        self.down = Dense((hidden,), (width,), state)

    def forward(self, x: torch.Tensor, compute: torch.dtype) -> torch.Tensor:
        """Transform each position by itself, (B, T, W)."""
        gate, up = self.gate_up(x).unbind(-2)
        return self.down((F.silu(gate) * up).to(compute))


def _embedding(entries: int, width: int, state: DiaState) -> nn.Embedding:
    empty = torch.empty(entries, width, dtype=getattr(torch, state.compute))
    return nn.Embedding.from_pretrained(empty, freeze=False)


def _norm(width: int) -> nn.RMSNorm:
    return nn.RMSNorm(width, eps=constants.NORM_EPS, dtype=torch.float32)


class DiaLayer(DiaPart):
    """Self attention, in the decoder cross attention, and feed-forward, each on the normed stream and added to it."""

    def __init__(self, size: DecoderSize | EncoderSize, state: DiaState) -> None:
        super().__init__(state)
        self.self_norm = _norm(size.width)
        self.self_attention = SelfAttention(size, state)
        self.crosses = isinstance(size, DecoderSize)
        if isinstance(size, DecoderSize):
            self.cross_norm = _norm(size.width)
            self.cross_attention = CrossAttention(size, state)
        self.feed_norm = _norm(size.width)
        self.feed_forward = DiaFeedForward(size.width, size.hidden, state)

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, compute: torch.dtype
    ) -> torch.Tensor:
        """Add the branches to the stream, (B, T, W); the mask is of the text, in the decoder and in the encoder."""
        self_mask = None if self.crosses else mask
        x = x + self.self_attention(self.settled(self.self_norm(x), compute), positions, self_mask, compute)
        if self.crosses:
            x = x + self.cross_attention(self.settled(self.cross_norm(x), compute), positions, mask, compute)
        return x + self.feed_forward(self.settled(self.feed_norm(x), compute), compute)


class DiaDecoder(DiaPart):
    """The decoder, at one step. Weights and caches are empty until they are filled."""

    positions: torch.Tensor
    text_mask: torch.Tensor

    def __init__(self, size: DecoderSize, state: DiaState) -> None:
        super().__init__(state)
        self.size = size
        self.embeddings = nn.ModuleList(
            _embedding(constants.VOCABULARY, size.width, state) for _ in range(constants.CHANNELS)
        )
        self.layers = nn.ModuleList(DiaLayer(size, state) for _ in range(size.layers))
        self.norm = _norm(size.width)
        self.head = Dense((size.width,), (constants.CHANNELS, constants.VOCABULARY), state)
        self.register_buffer("positions", torch.tensor([size.filled - 1]), persistent=False)
        mask = torch.ones(constants.GUIDANCE_ROWS, 1, 1, size.text_length, dtype=torch.bool)
        self.register_buffer("text_mask", mask, persistent=False)

    @property
    def compute_dtype(self) -> torch.dtype:
        """What the embeddings are stored in."""
        return cast(nn.Embedding, self.embeddings[0]).weight.dtype

    @property
    def blocks(self) -> list[DiaLayer]:
        return [cast(DiaLayer, layer) for layer in self.layers]

    @contextmanager
    def upstream(self) -> Iterator[None]:
        """Hold the decoder in the state after the pull request that landed."""
        texts = nn.ModuleList(layer.cross_attention.cache for layer in self.blocks)
        with super().upstream(), store_as(texts, self.compute_dtype if self.after("127") else None):
            yield

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Run one decode step: it writes the last filled slot, and is repeatable."""
        x: Any = None
        for channel, embedding in enumerate(self.embeddings):
            embedded = embedding(tokens[..., channel])  # (B, 1, W)
            x = embedded if x is None else x + embedded
        for layer in self.layers:
            x = layer(x, self.positions, self.text_mask, self.compute_dtype)
        return widened(self.head(self.norm(x)))


class DiaEncoder(DiaPart):
    """The text encoder. Weights are empty until they are filled."""

    positions: torch.Tensor

    def __init__(self, size: EncoderSize, state: DiaState) -> None:
        super().__init__(state)
        self.size = size
        self.embedding = _embedding(constants.BYTES, size.width, state)
        self.layers = nn.ModuleList(DiaLayer(size, state) for _ in range(size.layers))
        self.norm = _norm(size.width)
        self.register_buffer("positions", torch.arange(size.text_length), persistent=False)

    def forward(self, tokens: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        mask = (padding[:, :, None] == padding[:, None, :])[:, None]  # (B, 1, S, S)
        compute = self.embedding.weight.dtype
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.positions, mask, compute)
        return self.settled(self.norm(x), compute)


LONG_PRODUCT = 1 << 30
"""Multiply-adds of a projection from which it is computed in float32 while building; only the size `full` has such."""


def attention_std(head_dim: int) -> float:
    """Spread of an entry of a query or a key, so that their product over a head spreads as it should."""
    return math.sqrt(constants.ATTENTION_LOGIT_STD / constants.ATTENTION_SCALE) * head_dim**-0.25


def _spreads(model: nn.Module) -> dict[int, float]:
    """Spread of each projection's and embedding's weight, by the identity of the parameter."""
    spreads: dict[int, float] = {}
    for module in model.modules():
        if isinstance(module, Dense):
            spreads[id(module.weight)] = module.fan_in**-0.5
        elif isinstance(module, nn.Embedding):
            spreads[id(module.weight)] = constants.CHANNELS**-0.5 if isinstance(model, DiaDecoder) else 1.0
    for module in model.modules():
        if isinstance(module, DiaAttention):
            for projection in (module.query, module.key):
                spreads[id(projection.weight)] *= attention_std(projection.weight.shape[-1])
    if isinstance(model, DiaDecoder):
        spreads[id(model.head.weight)] *= constants.LOGIT_STD
    return spreads


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


def apply_delay(codes: torch.Tensor, *, delays: Sequence[int], bos: int) -> torch.Tensor:
    """Delay each channel; what is delayed past the end is dropped."""
    shifts = torch.tensor(delays, device=codes.device)
    wanted = torch.arange(codes.shape[1], device=codes.device)[:, None] - shifts  # (frames, channels)
    read = codes.gather(1, wanted.clamp(min=0).expand_as(codes))
    return torch.where(wanted < 0, torch.full_like(read, bos), read)


def _padding(text_length: int) -> torch.Tensor:
    """True where the text is in use: shape (text_length,)."""
    return torch.arange(text_length) < round(text_length * constants.TEXT_SHARE)


def build_decoder(size: str, *, device: str, seed: int, state: DiaState) -> BuiltCase:
    lengths = constants.DECODER_SIZES[size]
    with drawing(size, device, seed) as generator:
        model = DiaDecoder(lengths, state)
        fill_weights(model, generator)
        fill_caches(model, generator, padding=_padding(lengths.text_length))
        first = torch.full((1, 1, constants.CHANNELS), constants.BOS)
        codes = torch.randint(constants.CODES, (1, lengths.filled - 1, constants.CHANNELS), generator=generator)
        delayed = apply_delay(torch.cat((first, codes), dim=1), delays=constants.DELAYS, bos=constants.BOS)
    tokens = delayed[:, -1:].expand(constants.GUIDANCE_ROWS, 1, constants.CHANNELS).contiguous()
    return BuiltCase(model.eval().to(device), (tokens.to(device),))


def build_encoder(size: str, *, device: str, seed: int, state: DiaState) -> BuiltCase:
    lengths = constants.ENCODER_SIZES[size]
    with drawing(size, device, seed) as generator:
        model = DiaEncoder(lengths, state)
        fill_weights(model, generator)
        padding = _padding(lengths.text_length)
        text = torch.randint(1, constants.BYTES, (lengths.text_length,), generator=generator) * padding
        tokens = torch.stack((torch.zeros_like(text), text))
    return BuiltCase(
        model.eval().to(device), (tokens.to(device), padding.repeat(constants.GUIDANCE_ROWS, 1).to(device))
    )
