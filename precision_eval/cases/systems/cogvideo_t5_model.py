"""The T5-v1.1 encoder that CogVideoX takes its prompts through, with the stock norm or apex's; imports torch.

Written from what huggingface/transformers 4.44 computes in ``models/t5/modeling_t5.py`` (``T5EncoderModel`` with a
gated GELU) and NVIDIA/apex in ``normalization/fused_layer_norm.py`` and ``csrc/layer_norm_cuda.cpp``. Conventions: B
rows, L tokens, d the residual's width, H heads of D; no projection has a bias, attention's scale is 1.0, and dropout is
left out, as it does nothing in inference.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from precision_eval.cases.base import BuiltCase
from precision_eval.cases.systems.cogvideo_t5 import (
    BUCKETS,
    DTYPE,
    END_ID,
    GAIN_STD,
    GATE,
    KEPT_WIDE,
    MAX_DISTANCE,
    NORM_EPS,
    OUTLIER,
    OUTLIER_CHANNELS,
    OUTLIER_NEURONS,
    PAD_ID,
    POSITION_STD,
    RESIDUAL_STD,
    SINK,
    SINK_CHANNELS,
    SIZES,
    UPDATE_STD,
    T5Size,
)
from precision_eval.cases.systems.system import System, drawing, unfilled_linear, widened

#: How torch's C++ side names the dtypes in "expected scalar type ... but found ...".
SCALAR_TYPES = {torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float", torch.float64: "Double"}


def relative_buckets(length: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """Bucket of each key's position relative to each query's."""
    positions = torch.arange(length, device=device)
    offset = positions[None, :] - positions[:, None]  # key − query
    one_side = BUCKETS // 2
    exact = one_side // 2
    distance = offset.abs()
    octaves = torch.log(distance.to(torch.float32) / exact) / math.log(MAX_DISTANCE / exact)
    far = (exact + (octaves.clamp(min=0.0) * (one_side - exact)).to(torch.int64)).clamp(max=one_side - 1)
    return (offset > 0) * one_side + torch.where(distance < exact, distance, far)


def gelu_new(x: torch.Tensor) -> torch.Tensor:
    """GELU's tanh approximation, each step stored in x's dtype as the source's is."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def clamped(hidden: torch.Tensor) -> torch.Tensor:
    """Clamp infinities, if the hidden states are float16, as ``T5Block`` does after each sublayer."""
    if hidden.dtype != torch.float16:
        return hidden
    largest = torch.finfo(torch.float16).max
    limit = torch.where(torch.isinf(hidden).any(), largest - 1000, largest)
    return torch.clamp(hidden, min=-limit, max=limit)


def _normed(hidden: torch.Tensor) -> torch.Tensor:
    """Divide by the root mean square of the last dimension, in float32 at least."""
    variance = widened(hidden).pow(2).mean(-1, keepdim=True)
    return hidden * torch.rsqrt(variance + NORM_EPS)


class StockNorm(System):
    """``T5LayerNorm``: takes any dtype, and returns the weight's if that is a half."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim, device="meta"))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        normed = _normed(hidden)
        if self.weight.dtype in (torch.float16, torch.bfloat16):
            normed = normed.to(self.weight.dtype)
        return self.weight * normed


class FusedNorm(StockNorm):
    """apex's ``FusedRMSNorm``: reads its weight in the input's dtype, and raises where that is another."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.is_upstream:
            return super().forward(hidden)
        weight: torch.Tensor = self.weight
        device_type = hidden.device.type
        if torch.is_autocast_enabled(device_type):
            dtype = torch.get_autocast_dtype(device_type)
            hidden, weight = hidden.to(dtype), weight.to(dtype)
        if hidden.dtype != weight.dtype:
            expected, found = SCALAR_TYPES[hidden.dtype], SCALAR_TYPES[weight.dtype]
            raise RuntimeError(f"expected scalar type {expected} but found {found}")
        return weight * _normed(hidden).to(hidden.dtype)


class T5Attention(nn.Module):
    """Self-attention with a bias for relative positions and no 1/√D; scores are softened in float32."""

    def __init__(self, size: T5Size) -> None:
        super().__init__()
        self.heads = size.heads
        inner = size.heads * size.head_dim
        self.q = unfilled_linear(size.dim, inner)
        self.k = unfilled_linear(size.dim, inner)
        self.v = unfilled_linear(size.dim, inner)
        self.o = unfilled_linear(inner, size.dim)

    def forward(self, x: torch.Tensor, position_bias: torch.Tensor) -> torch.Tensor:
        """Attend from every token to every token, padding included."""
        # view and not unflatten, which Dynamo leaves the graph for where a function mode is in force
        by_head = (*x.shape[:-1], self.heads, -1)
        query, key, value = (part.view(by_head).transpose(1, 2) for part in (self.q(x), self.k(x), self.v(x)))
        # each: (B, H, L, D)
        scores = torch.matmul(query, key.transpose(2, 3))  # (B, H, L, L)
        scores += position_bias
        weights = torch.softmax(widened(scores), dim=-1).type_as(scores)
        return self.o(torch.matmul(weights, value).transpose(1, 2).flatten(-2))


class T5FeedForward(nn.Module):
    """wo(gelu_new(gate x) · up x), the product brought to the dtype that ``wo`` is stored in."""

    def __init__(self, size: T5Size) -> None:
        super().__init__()
        self.gate = unfilled_linear(size.dim, size.hidden)
        self.up = unfilled_linear(size.dim, size.hidden)
        self.wo = unfilled_linear(size.hidden, size.dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = gelu_new(self.gate(x)) * self.up(x)
        if product.dtype != self.wo.weight.dtype:
            product = product.to(self.wo.weight.dtype)
        return self.wo(product)


class T5Block(nn.Module):
    """Attention and feed-forward, each on the normed residual, added to it, and clamped."""

    def __init__(self, size: T5Size, norm: type[StockNorm]) -> None:
        super().__init__()
        self.attention_norm = norm(size.dim)
        self.attention = T5Attention(size)
        self.feed_forward_norm = norm(size.dim)
        self.feed_forward = T5FeedForward(size)

    def forward(self, hidden: torch.Tensor, position_bias: torch.Tensor) -> torch.Tensor:
        """Add both sublayers' updates."""
        hidden = clamped(hidden + self.attention(self.attention_norm(hidden), position_bias))
        return clamped(hidden + self.feed_forward(self.feed_forward_norm(hidden)))


class T5Encoder(System):
    """Embedding, blocks and a last norm; every block shares the bias for relative positions."""

    landed = (
        "huggingface/transformers PR #45723 (merged 1 May 2026): T5 takes its own norm even where apex is installed; "
        "no change is known in zai-org/CogVideo, whose #170 is closed"
    )

    def __init__(self, size: T5Size, *, fused: bool) -> None:
        super().__init__()
        norm = FusedNorm if fused else StockNorm
        self.embedding = nn.Embedding(size.vocabulary, size.dim, device="meta")
        self.position_bias = nn.Embedding(BUCKETS, size.heads, device="meta")
        self.blocks = nn.ModuleList(T5Block(size, norm) for _ in range(size.layers))
        self.final_norm = norm(size.dim)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        buckets = relative_buckets(ids.shape[1], ids.device)
        position_bias = self.position_bias(buckets).permute(2, 0, 1)[None]  # (1, H, L, L)
        hidden = self.embedding(ids)
        for block in self.blocks:
            hidden = block(hidden, position_bias)
        return self.final_norm(hidden)


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


def build_t5(size: str, *, device: str, seed: int, fused: bool) -> BuiltCase:
    shape = SIZES[size]
    model = T5Encoder(shape, fused=fused)
    with drawing(size, device, seed) as generator:
        model.load_state_dict(drawn_weights(model, shape, generator, getattr(torch, DTYPE)), assign=True)
        ids = torch.full((1, shape.tokens), PAD_ID)
        prompt = torch.randint(END_ID + 1, shape.vocabulary, (shape.prompt - 1,), generator=generator)
    ids[0, : shape.prompt - 1] = prompt
    ids[0, shape.prompt - 1] = END_ID
    return BuiltCase(model.eval().requires_grad_(False).to(device), (ids.to(device),))
