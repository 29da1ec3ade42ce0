"""Silent costs, planted: parts of speech models and real classes, each with the twin that a careful author wrote.

Nothing here raises, and nothing is wrong by its numbers: something is computed wider, cast more often or attended to
more slowly than it need be. Every part holds both writings; a comment ``# @name`` marks the careless line. Parts stand
between two transformer blocks, so that a call takes 0.5 to 20 ms. B rows, L positions, D the width, H heads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from precision_eval.core.formats import short
from validation.doctor.architectures import maker
from validation.doctor.small import Built
from validation.doctor.trials import Block

D, H, L = 256, 4, 96
BRAIN, SINGLE = torch.bfloat16, torch.float32


class Part(nn.Module):
    """One part; `cured` says which of its writings runs."""

    cured = False


def _heads(x: torch.Tensor) -> torch.Tensor:
    """(B, L, D) → (B, H, L, D/H)."""
    return x.unflatten(-1, (H, -1)).transpose(1, 2)


def _joined(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).flatten(-2)


class WideLinear(Part):
    """A product that widens its input and its weight each time."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6 * D, D) / 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.project(x).unflatten(-1, (6, D)).mean(-2)

    def project(self, x: torch.Tensor) -> torch.Tensor:
        """Project to six times the width."""
        if self.cured:
            return F.linear(x, self.weight)
        return F.linear(x.float(), self.weight.float()).to(x.dtype)  # @wide_linear


class WideModule(Part):
    """A gated MLP that was left in float32, its input cast to it."""

    wide = True

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.cured:
            return self.down(F.silu(self.gate(x)) * self.up(x))
        y = x.float()  # @wide_module
        return self.down(F.silu(self.gate(y)) * self.up(y)).to(x.dtype)  # @wide_module


class WideVocoder(Part):
    """Dilated convolutions as vocoders have them, in float32 for old hardware's sake."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(D, D, 3, padding=d, dilation=d) for d in (1, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.mT
        conv: Any
        for conv in self.convs:
            if self.cured:
                y = y + conv(F.leaky_relu(y, 0.1))
            else:
                wide = F.leaky_relu(y, 0.1).float()  # @wide_vocoder
                mixed = F.conv1d(
                    wide, conv.weight.float(), conv.bias.float(), 1, conv.padding, conv.dilation
                )  # @wide_vocoder
                y = y + mixed.to(y.dtype)
        return y.mT


class WideHead(Part):
    """Logits in float32 by widening what makes them; they go back into the model as an embedding does."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(8 * D, D) / 16)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Score every entry."""
        if self.cured:
            return x @ self.table.T
        return (x.float() @ self.table.T.float()).to(x.dtype)  # @wide_head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.logits(x).unflatten(-1, (8, D)).mean(-2)


class WideScores(Part):
    """Attention by hand whose two products are in float32, where the softmax alone need be."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = map(_heads, self.project(x.repeat(1, 2, 1)).chunk(3, dim=-1))
        if self.cured:
            shares = (q @ k.mT).mul(q.shape[-1] ** -0.5).softmax(-1, dtype=SINGLE).to(q.dtype)
            return self.out(_joined(shares @ v))[:, : x.shape[1]]
        shares = (q.float() @ k.float().mT).mul(q.shape[-1] ** -0.5).softmax(-1)  # @wide_scores
        return self.out(_joined((shares @ v.float()).to(x.dtype)))[:, : x.shape[1]]  # @wide_scores


class NarrowCache(Part):
    """A half cache in a float32 model, widened whole at every step: kept in float32 it is not cast."""

    kept = BRAIN
    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.query, self.out = nn.Linear(D, D), nn.Linear(D, D)
        self.register_buffer("keys", torch.randn(1, H, 2048, D // H).to(BRAIN).float())
        self.register_buffer("values", torch.randn(1, H, 2048, D // H).to(BRAIN).float())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = _heads(self.query(x[:, -1:]))
        if self.cured:
            return x + self.out(_joined(F.scaled_dot_product_attention(q, self.keys, self.values)))
        k, v = self.keys.to(q.dtype), self.values.to(q.dtype)  # @narrow_cache
        return x + self.out(_joined(F.scaled_dot_product_attention(q, k, v)))


class WideCache(NarrowCache):
    """A float32 cache in a half model, narrowed whole at every step."""

    kept = SINGLE

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = _heads(self.query(x[:, -1:]))
        if self.cured:
            return x + self.out(_joined(F.scaled_dot_product_attention(q, self.keys, self.values)))
        k, v = self.keys.to(x.dtype), self.values.to(x.dtype)  # @wide_cache
        return x + self.out(_joined(F.scaled_dot_product_attention(q, k, v)))


class WideCodebook(Part):
    """A table of codes in float32, cast whole at each of several steps."""

    kept = SINGLE
    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(2048, D).to(BRAIN).float())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for step in range(3):
            if self.cured:
                nearest = (x[:, step] @ self.table.T).argmax(-1)
                row = self.table[nearest]
            else:
                table = self.table.to(x.dtype)  # @wide_codebook
                nearest = (x[:, step] @ table.T).argmax(-1)
                row = table[nearest]
            x = x + 0.1 * row[:, None]
        return x


class RecastMemory(Part):
    """What an encoder gave, widened there, narrowed anew by each of six readers with one query each."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(D, 8 * D)
        self.readers = nn.ModuleList(nn.Linear(D, D) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        memory = self.lift(x).view(1, -1, D).float().tanh()  # @recast_memory
        if self.cured:
            memory = memory.to(x.dtype)
        last = x[:, -1:]
        for reader in self.readers:
            heads = _heads(memory if self.cured else memory.to(x.dtype))  # @recast_memory
            last = last + _joined(F.scaled_dot_product_attention(_heads(reader(last)), heads, heads))
        return x + last


class IgnoredOut(Part):
    """A product into a buffer, which autocast leaves alone."""

    cast = True

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(D, 4 * D) / 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, D)
        if self.cured:
            return x + (rows.to(BRAIN) @ self.weight).view(*x.shape[:2], 4, D).float().mean(-2)
        held = rows.new_empty(rows.shape[0], 4 * D, dtype=SINGLE)
        wide = torch.addmm(held.zero_(), rows, self.weight, out=held)  # @ignored_out
        return x + wide.view(*x.shape[:2], 4, D).mean(-2)


class IgnoredSum(Part):
    """A batched product added in place, which autocast leaves alone."""

    cast = True

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.randn(1, D, D) / 16)
        self.bias = nn.Parameter(torch.zeros(D))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = self.bias.float().expand(x.shape).clone()
        for _ in range(3):
            if self.cured:
                total = total + torch.bmm(x.to(BRAIN), self.mix.expand(x.shape[0], -1, -1)).float()
            else:
                total.baddbmm_(x.float(), self.mix.expand(x.shape[0], -1, -1))  # @ignored_sum
        return x + total


class IgnoredGRU(Part):
    """A GRU under autocast, which knows only LSTMs; cast by hand it runs in half."""

    cast = True

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(D, D, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        stored = next(self.cell.parameters()).dtype
        return x + self.cell(x.to(stored))[0].to(x.dtype)  # @ignored_gru


class IgnoredBilinear(Part):
    """A bilinear form, which autocast leaves alone."""

    cast = True

    def pair(self, y: torch.Tensor) -> torch.Tensor:
        """Every two features of a position."""
        return F.bilinear(y, y, self.form)  # @ignored_bilinear

    def __init__(self) -> None:
        super().__init__()
        self.form = nn.Parameter(torch.randn(16, D, D) / 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pair = self.pair(x[:, :8].to(self.form.dtype))
        return x + pair.to(x.dtype).mean(-1, keepdim=True).mean(1, keepdim=True)


class Attention(Part):
    """What the parts whose attention is slow have in common."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def parts(self, x: torch.Tensor) -> Any:
        """Heads of query, key and value over a long sequence."""
        return map(_heads, self.project(x.repeat(1, 3, 1)).chunk(3, dim=-1))

    def end(self, x: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        """Join the heads."""
        return x + self.out(_joined(mixed)[:, : x.shape[1]])


class PinnedMath(Attention):
    """A pin from a debugging session."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        if self.cured:
            return self.end(x, F.scaled_dot_product_attention(q, k, v, is_causal=True))
        with sdpa_kernel(SDPBackend.MATH):  # @pinned_math
            return self.end(x, F.scaled_dot_product_attention(q, k, v, is_causal=True))  # @pinned_math


class FlatHeads(Attention):
    """Heads folded into the batch: three dimensions, which no fused kernel takes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        if self.cured:
            return self.end(x, F.scaled_dot_product_attention(q, k, v))
        q, k, v = (t.flatten(0, 1) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v)  # @flat_heads
        return self.end(x, mixed.unflatten(0, (x.shape[0], H)))


class LearnedBias(Attention):
    """A learned bias between positions, of which somebody left gradients on."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(1, H, 3 * L, 3 * L))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        if self.cured:
            return self.end(x, F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias.detach()))
        return self.end(x, F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias))  # @learned_bias


class StridedHeads(Attention):
    """Values kept transposed, so that their last dimension is not contiguous."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        v = v.mT.contiguous().mT
        if self.cured:
            return self.end(x, F.scaled_dot_product_attention(q, k, v.contiguous()))
        return self.end(x, F.scaled_dot_product_attention(q, k, v))  # @strided_heads


class ThereAndBack(Part):
    """Widened and narrowed again with nothing between, on what is wide."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.up(x)
        for _ in range(2):
            hidden = F.relu(hidden)
            if not self.cured:
                hidden = hidden.float().to(x.dtype)  # @there_and_back
        return self.down(hidden)


class StepCast(Part):
    """A loop over steps that narrows a float32 projection at each of them."""

    wide = True

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(D, 2 * D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x[:, -1]
        for _ in range(4):
            weight: torch.Tensor = self.project.weight
            bias: torch.Tensor = self.project.bias
            if not self.cured:
                weight, bias = weight.to(x.dtype), bias.to(x.dtype)  # @step_cast
            state = state + F.linear(state, weight, bias).unflatten(-1, (2, D)).mean(-2)
        return x + state[:, None]


class PositionTable(Part):
    """A long table of positions in float32, narrowed whole where a slice is read."""

    kept = SINGLE
    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(4096, D).to(BRAIN).float())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = self.table if self.cured else self.table.to(x.dtype)  # @position_table
        return x + table[: x.shape[1]]


class HalfTable(Part):
    """Embeddings stored in half in a float32 model, widened whole at each look-up."""

    kept = BRAIN
    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(4096, D).to(BRAIN).float())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ids = torch.arange(x.shape[1]) * 7 % 4096
        return x + F.embedding(ids, self.table if self.cured else self.table.float())  # @half_table


class WideUpsampler(Part):
    """Transposed convolutions of an upsampler in float32 inside a half model."""

    wide = True

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose1d(D, D, 8, stride=4, padding=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.mT
        raised = self.up(y) if self.cured else self.up(y.float()).to(x.dtype)  # @wide_upsampler
        return x + raised.unflatten(-1, (-1, 4)).mean(-1).mT


class WideLSTM(Part):
    """A recurrent layer in float32 inside a half model."""

    wide = True

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(D, D, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.cured:
            return x + self.cell(x)[0]
        return x + self.cell(x.float())[0].to(x.dtype)  # @wide_lstm


class WideExperts(Part):
    """Experts by a batched product over weights that are widened each time."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.Parameter(torch.randn(4, D, 2 * D) / 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = self.asked(x.expand(4, -1, -1))
        return x + mixed.mean(0, keepdim=True).unflatten(-1, (2, D)).mean(-2)

    def asked(self, x: torch.Tensor) -> torch.Tensor:
        """Ask every expert."""
        if self.cured:
            return torch.bmm(x, self.experts)
        return torch.bmm(x.float(), self.experts.float()).to(x.dtype)  # @wide_experts


class AttributeCache(Part):
    """Keys and values of other layers' steps as plain attributes in half, widened at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.out = nn.Linear(D, D), nn.Linear(D, D)
        self.past = [torch.randn(1, H, 1536, D // H).to(BRAIN) for _ in range(2)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.cured and self.past[0].dtype is not x.dtype:
            self.past = [part.to(x.dtype) for part in self.past]
        q = _heads(self.query(x[:, -1:]))
        k, v = self.past
        if not self.cured:
            k, v = k.to(q.dtype), v.to(q.dtype)  # @attribute_cache
        return x + self.out(_joined(F.scaled_dot_product_attention(q, k, v)))


class Chain(nn.Module):
    """A transformer block and the part; under autocast where the part is about that."""

    def __init__(self, part: Part) -> None:
        super().__init__()
        self.first, self.part = Block(D), part
        self.cast = getattr(part, "cast", False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", BRAIN, enabled=self.cast):
            return self.part(self.first(x))


def chained(part: type[Part], dtype: torch.dtype, *, cured: bool) -> Built:
    """Build a chain whose part is the careless or the careful one; weights under autocast are stored in half."""
    torch.manual_seed(0)
    model = Chain(part()).to(SINGLE if getattr(part, "cast", False) else dtype).eval().requires_grad_(False)
    model.part.cured = cured
    for buffer in model.part.buffers() if not cured else ():
        buffer.data = buffer.data.to(getattr(part, "kept", buffer.dtype))
    for module in model.modules() if model.cast else ():
        if isinstance(module, nn.Linear) or (cured and isinstance(module, Part)):
            module.to(BRAIN)
    if getattr(part, "wide", False) and not cured:
        model.part.float()
    if part is LearnedBias:
        model.part.bias.requires_grad_(True)
    x = torch.randn(1, L, D, generator=torch.Generator().manual_seed(3))
    return model, (x.to(next(model.first.first.parameters()).dtype),)


# ---- real classes


class InFloat32(nn.Module):
    """A module kept in float32 inside a half model, as one does to be safe."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner.float()

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = self.inner(x.float(), *args, **kwargs)  # @in_float32
        return result.to(x.dtype)


class UnderAutocast(nn.Module):
    """A float32 model called under autocast, which casts its weights anew at each call."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", BRAIN):
            return self.inner(*args, **kwargs)


_PRODUCTS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d)


def under_autocast(make: Callable[[torch.dtype], Built], *, cured: bool) -> Built:
    """Call a float32 model under autocast; cured, the weights of its products are stored in half."""
    model, inputs = make(SINGLE)
    for module in model.modules() if cured else ():
        if isinstance(module, _PRODUCTS):
            module.to(BRAIN)
    return UnderAutocast(model).eval(), inputs


def kept_wide(make: Callable[[torch.dtype], Built], path: str, *, cured: bool) -> Built:
    """Keep one submodule of a half model in float32, its input cast to it."""
    model, inputs = make(BRAIN)
    if not cured:
        model.set_submodule(path, InFloat32(model.get_submodule(path)))
    return model, inputs


def by_hand(make: Callable[[torch.dtype], Built], dtype: torch.dtype, *, cured: bool) -> Built:
    """Attend by the library's eager functions, where it has fused ones; cured, by those."""
    model: Any
    model, inputs = make(dtype)
    model.set_attn_implementation("sdpa" if cured else "eager")
    return model, inputs


def _ids(count: int) -> Callable[[torch.dtype], Any]:
    ids = torch.randint(2, 90, (1, count), generator=torch.Generator().manual_seed(0))
    return lambda dtype: {"input_ids": ids.clone(), "use_cache": False}


def _normal(name: str, *shape: int, **more: Any) -> Callable[[torch.dtype], Any]:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return lambda dtype: {name: values.to(dtype), **more}


_SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": D, "intermediate_size": 2 * D, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 512,
}  # fmt: skip
_SPEECH: dict[str, Any] = {
    "hidden_size": D, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 2 * D,
    "conv_dim": (64, 64), "conv_kernel": (10, 8), "conv_stride": (5, 4), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "feat_extract_norm": "layer",
    "do_stable_layer_norm": True,
}  # fmt: skip


def _hf(model: str, config: str, inputs: Callable[[torch.dtype], Any], **settings: Any) -> Callable[..., Built]:
    return maker("transformers", model, inputs, config, as_loaded=False, **settings)


llama = _hf("LlamaModel", "LlamaConfig", _ids(192), num_key_value_heads=4, **_SIZES)
bert = _hf("BertModel", "BertConfig", lambda dtype: {"input_ids": _ids(192)(dtype)["input_ids"]}, **_SIZES)
gemma = _hf("GemmaModel", "GemmaConfig", _ids(128), num_key_value_heads=4, head_dim=64, **_SIZES)
qwen = _hf("Qwen2Model", "Qwen2Config", _ids(192), num_key_value_heads=2, **_SIZES)
llama_step = _hf("LlamaModel", "LlamaConfig", _ids(8), num_key_value_heads=4, name="llama_step", **_SIZES)
bert_step = _hf(
    "BertModel", "BertConfig", lambda dtype: {"input_ids": _ids(8)(dtype)["input_ids"]}, name="bert_step", **_SIZES
)
gemma_step = _hf("GemmaModel", "GemmaConfig", _ids(8), num_key_value_heads=4, head_dim=64, name="gemma_step", **_SIZES)
qwen_step = _hf("Qwen2Model", "Qwen2Config", _ids(8), num_key_value_heads=2, name="qwen_step", **_SIZES)
wav2vec2 = _hf("Wav2Vec2Model", "Wav2Vec2Config", _normal("input_values", 1, 4000), **_SPEECH)
hubert = _hf("HubertModel", "HubertConfig", _normal("input_values", 1, 3600), **_SPEECH)
whisper = _hf(
    "WhisperModel", "WhisperConfig",
    lambda dtype: _normal("input_features", 1, 80, 300, decoder_input_ids=_ids(16)(dtype)["input_ids"],
                          use_cache=False)(dtype),
    vocab_size=96, encoder_layers=2, encoder_attention_heads=4, decoder_layers=1, decoder_attention_heads=4,
    decoder_ffn_dim=512, encoder_ffn_dim=512, d_model=D, max_source_positions=150, max_target_positions=32,
    decoder_start_token_id=1, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
hifigan = _hf(
    "SpeechT5HifiGan", "SpeechT5HifiGanConfig", _normal("spectrogram", 1, 24, 80),
    upsample_initial_channel=128, upsample_rates=[4, 4], upsample_kernel_sizes=[8, 8],
)  # fmt: skip
encodec = _hf(
    "EncodecModel", "EncodecConfig", _normal("input_values", 1, 1, 1600), num_filters=16, hidden_size=64,
    codebook_dim=64, codebook_size=256,
)  # fmt: skip
dit = maker(
    "diffusers", "DiTTransformer2DModel",
    lambda dtype: {**_normal("hidden_states", 1, 4, 16, 16)(dtype), "timestep": torch.tensor([3]),
                   "class_labels": torch.tensor([1])},
    num_attention_heads=4, attention_head_dim=64, in_channels=4, out_channels=4, num_layers=2, sample_size=16,
    patch_size=2,
)  # fmt: skip
vae = maker(
    "diffusers", "AutoencoderKL", _normal("sample", 1, 3, 32, 32), down_block_types=["DownEncoderBlock2D"] * 2,
    up_block_types=["UpDecoderBlock2D"] * 2, block_out_channels=[32, 64], layers_per_block=1, norm_num_groups=8,
)  # fmt: skip


_LATE = frozenset(
    [
        "step_cast",
        "position_table",
        "half_table",
        "wide_upsampler",
        "wide_lstm",
        "wide_experts",
        "attribute_cache",
        "in_float32",
    ]
)
"""Markers of the plants that were written after the rules were begun."""


@dataclass(frozen=True)
class CostPlant:
    """A silent cost and its truth."""

    name: str
    kind: str
    make: Callable[..., Built]
    """Called with whether it is ``cured``."""

    marker: str = ""
    """Of its lines; empty where it is a setting of the model, or of what is stored."""

    @property
    def is_held_out(self) -> bool:
        """Whether it was not looked at while rules were settled: of what was written last three fifths, by a hash."""
        late = not self.marker or self.marker in _LATE
        return late and hashlib.sha256(self.name.encode()).digest()[0] % 5 < 3

    @property
    def lines(self) -> tuple[int, ...]:
        """Numbers of its lines in this file."""
        lines = Path(__file__).read_text().splitlines()
        return tuple(n for n, text in enumerate(lines, 1) if self.marker and text.endswith(f"# @{self.marker}"))


_PARTS: tuple[tuple[type[Part], str, str, tuple[torch.dtype, ...]], ...] = (
    (WideLinear, "wide_product", "wide_linear", (BRAIN,)),
    (WideModule, "wide_product", "wide_module", (BRAIN,)),
    (WideVocoder, "wide_product", "wide_vocoder", (BRAIN,)),
    (WideHead, "wide_product", "wide_head", (BRAIN,)),
    (WideScores, "wide_product", "wide_scores", (BRAIN,)),
    (WideUpsampler, "wide_product", "wide_upsampler", (BRAIN,)),
    (WideLSTM, "wide_product", "wide_lstm", (BRAIN,)),
    (WideExperts, "wide_product", "wide_experts", (BRAIN,)),
    (NarrowCache, "repeated_cast", "narrow_cache", (SINGLE,)),
    (WideCache, "repeated_cast", "wide_cache", (BRAIN, torch.float16)),
    (WideCodebook, "repeated_cast", "wide_codebook", (BRAIN,)),
    (RecastMemory, "repeated_cast", "recast_memory", (BRAIN,)),
    (StepCast, "repeated_cast", "step_cast", (BRAIN,)),
    (PositionTable, "repeated_cast", "position_table", (BRAIN, torch.float16)),
    (HalfTable, "repeated_cast", "half_table", (SINGLE,)),
    (AttributeCache, "repeated_cast", "attribute_cache", (SINGLE,)),
    (IgnoredOut, "autocast_ignored", "ignored_out", (BRAIN,)),
    (IgnoredSum, "autocast_ignored", "ignored_sum", (BRAIN,)),
    (IgnoredGRU, "autocast_ignored", "ignored_gru", (BRAIN,)),
    (IgnoredBilinear, "autocast_ignored", "ignored_bilinear", (BRAIN,)),
    (PinnedMath, "slow_attention", "pinned_math", (SINGLE, BRAIN)),
    (FlatHeads, "slow_attention", "flat_heads", (SINGLE, BRAIN)),
    (LearnedBias, "slow_attention", "learned_bias", (SINGLE, BRAIN)),
    (StridedHeads, "slow_attention", "strided_heads", (SINGLE, BRAIN)),
    (ThereAndBack, "there_and_back", "there_and_back", (BRAIN,)),
)

_BY_HAND = ((llama, SINGLE), (llama, BRAIN), (bert, SINGLE), (bert, BRAIN), (qwen, BRAIN), (wav2vec2, BRAIN),
            (hubert, BRAIN), (whisper, SINGLE))  # fmt: skip
_RECAST = (llama_step, bert_step, qwen_step, gemma_step, dit, hifigan)
_KEPT = (
    (llama, "layers.0.mlp"),
    (qwen, "layers.1.mlp"),
    (gemma, "layers.0.mlp"),
    (whisper, "encoder.layers.0.fc1"),
    (wav2vec2, "encoder.layers.0.feed_forward"),
    (hubert, "encoder.layers.1.feed_forward"),
    (dit, "transformer_blocks.0.ff"),
    (hifigan, "resblocks.0"),
    (vae, "decoder.up_blocks.1.resnets.0.conv1"),
)


def cost_plants() -> Iterator[CostPlant]:
    """Yield the plants: parts in a chain, then real classes."""
    for part, kind, marker, dtypes in _PARTS:
        for dtype in dtypes:
            name = f"{marker} in {short(dtype)}"
            yield CostPlant(name, kind, partial(chained, part, dtype), marker)
    for make, dtype in _BY_HAND:
        name = f"{make.__name__} in {short(dtype)} attends by its eager functions"
        yield CostPlant(name, "slow_attention", partial(by_hand, make, dtype))
    for make in _RECAST:
        name = f"{make.__name__} in float32 under autocast"
        yield CostPlant(name, "repeated_cast", partial(under_autocast, make))
    for make, path in _KEPT:
        name = f"{make.__name__} in bfloat16, {path} in float32"
        yield CostPlant(name, "wide_product", partial(kept_wide, make, path), "in_float32")


def clean_twins() -> dict[str, Callable[[], Built]]:
    """List the careful twin of each plant, and the real classes in three dtypes."""
    twins: dict[str, Callable[[], Built]] = {
        f"cured: {plant.name}": partial(plant.make, cured=True) for plant in cost_plants()
    }
    for make in (llama, bert, gemma, qwen, wav2vec2, hubert, whisper, hifigan, encodec, dit, vae):
        for dtype in (torch.float16, BRAIN, SINGLE):
            twins[f"{make.__name__} in {short(dtype)}"] = partial(make, dtype)
    return twins
