"""The second set of plants, written before any of them was tried and without the doctor's rules or tests being read.

Its author knew the first set and which of it was missed. Half of the plants edit the libraries' own classes where the
first set did not; the rest are code that users put around a layer, faulty as they write it. ``CLEAN`` holds the same
code as careful users write it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from validation.doctor import architectures as zoo
from validation.doctor.blind import _DF, _HF, Bolted, bolted, plants_of
from validation.doctor.plants import BRAIN, HALF, SINGLE, Edit, Plant, given, returned, stored
from validation.doctor.small import Built, Make


class Wrapped(Bolted):
    """What a user adds, its parts in the model's own dtype unless its name says otherwise."""

    own: torch.Tensor
    wide: torch.Tensor
    codes: torch.Tensor

    def __init__(self, base: nn.Linear, width: int) -> None:
        super().__init__(base, width)
        own, wide = base.weight.dtype, torch.linspace(0.1, 1.0, width)
        self.inner = nn.Linear(width, width).to(own)
        self.register_buffer("own", wide.to(own))
        self.register_buffer("wide", wide)
        self.build(own)

    def build(self, own: torch.dtype) -> None:
        """Add what this one needs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.added(self.base(x))

    def added(self, y: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class FreshState(Wrapped):
    """A recurrent cell whose first state has torch's default dtype."""

    def build(self, own: torch.dtype) -> None:
        self.cell = nn.GRUCell(self.width, self.width).to(own)

    def added(self, y: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(y.shape[0], self.width)
        for step in range(2):
            state = self.cell(y[:, step], state)  # @fresh_state
        return y + state[:, None]


class WideChances(Wrapped):
    """Softmax in float32, not brought back before the values."""

    def added(self, y: torch.Tensor) -> torch.Tensor:
        chances = torch.softmax(y @ y.transpose(1, 2), dim=-1, dtype=torch.float32)
        return chances @ y  # @chances


class WideRotation(Wrapped):
    """A rotation whose tables stay in float32."""

    def added(self, y: torch.Tensor) -> torch.Tensor:
        turned = y * self.wide.cos() + y.roll(1, -1) * self.wide.sin()  # @rotation
        return F.scaled_dot_product_attention(turned, y, y)


class ComplexRotation(Wrapped):
    """A rotation by complex numbers that forgets ``type_as``."""

    def added(self, y: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(y.float().unflatten(-1, (-1, 2)).contiguous())
        angles = self.wide[: self.width // 2]
        turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)
        return y + turned  # @turned


class Alibi(Wrapped):
    """A bias for distances in float32."""

    def added(self, y: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(y.shape[1], dtype=torch.float32)
        distance = -(steps[None] - steps[:, None]).abs().expand(y.shape[0], -1, -1)
        scores = torch.baddbmm(distance, y, y.transpose(1, 2))  # @alibi
        return scores.softmax(dim=-1) @ y


class Merged(Wrapped):
    """Features of another encoder in the place of some tokens."""

    def added(self, y: torch.Tensor) -> torch.Tensor:
        places = torch.zeros(y.shape, dtype=torch.bool)
        places[:, :1] = True
        return y.masked_scatter(places, self.wide.expand(y.shape[0], -1))  # @merged


class Weighted(Wrapped):
    """Experts' outputs weighted by chances in float32, then summed into place."""

    def added(self, y: torch.Tensor) -> torch.Tensor:
        flat = y.flatten(0, -2)
        chances = F.softmax(self.inner(flat), dim=-1, dtype=torch.float32)[:, :1]
        chosen = flat * chances  # @weighted
        return torch.zeros_like(flat).index_add_(0, torch.arange(flat.shape[0]), chosen).view_as(y)


class Padded(Wrapped):
    """Zeros of torch's default dtype put before the sequence."""

    def added(self, y: torch.Tensor) -> torch.Tensor:
        longer = torch.cat((torch.zeros(y.shape[0], 1, self.width), y), dim=1)  # @padded
        return self.inner(longer)[:, 1:]


class TimeTable(Wrapped):
    """Sines and cosines of a time, not cast before the layer."""

    def added(self, y: torch.Tensor) -> torch.Tensor:
        angles = 7.0 * torch.exp(-torch.arange(self.width // 2) / 2.0)
        table = torch.cat((angles.sin(), angles.cos()))
        return y + self.inner(table)  # @time_table


class Outside(Wrapped):
    """A region kept out of autocast, with the input widened and the layer not."""

    def added(self, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return y + self.inner(y.float()).to(y.dtype)  # @outside


class Framed(Wrapped):
    """A short-time transform in float32 with a window that was cast with the model."""

    def added(self, y: torch.Tensor) -> torch.Tensor:
        window = self.own[:8]
        bins = torch.stft(y.flatten(1).float(), 8, 4, window=window, return_complex=True)  # @framed
        return y * bins.abs().mean().to(y.dtype)


class Resized(Wrapped):
    """Resizes in float32 and goes on so."""

    def added(self, y: torch.Tensor) -> torch.Tensor:
        longer = F.interpolate(y.transpose(1, 2).float(), scale_factor=2.0).transpose(1, 2)
        return self.inner(longer)[:, ::2]  # @resized


class Filled(Wrapped):
    """A filler with one dimension, which promotes."""

    def added(self, y: torch.Tensor) -> torch.Tensor:
        return torch.where(y > 0.1, y, torch.full((1,), -1.0))  # @filled


class Averaged(Wrapped):
    """A moving average in float32."""

    def added(self, y: torch.Tensor) -> torch.Tensor:
        self.wide.lerp_(y.flatten(0, -2).mean(dim=0), 0.1)  # @averaged
        return y - self.wide.to(y.dtype)


class Guided(Wrapped):
    """A guidance scale held as a vector of one."""

    def added(self, y: torch.Tensor) -> torch.Tensor:
        scale = torch.tensor([1.5])
        return y + scale * (y - y.roll(1, 0))  # @guided


class Decaying(Wrapped):
    """A state space's rate kept in float32."""

    def added(self, y: torch.Tensor) -> torch.Tensor:
        decay = torch.exp(-self.wide * y.abs())  # @decay
        return torch.einsum("...d,ed->...e", decay, self.inner.weight)


class NumpyBias(Wrapped):
    """A bias made by numpy."""

    def added(self, y: torch.Tensor) -> torch.Tensor:
        bias = torch.as_tensor(np.linspace(-1.0, 1.0, self.width))
        return y + bias  # @numpy_bias


class RoundedRates(Wrapped):
    """Rates of a rotation that were cast with the model, at late positions."""

    def added(self, y: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(3001, 3001 + y.shape[1])
        angles = positions.to(y.dtype)[:, None] * self.own  # @rates
        return y * angles.cos()


class SmallEps(Wrapped):
    """Divides by a norm with an epsilon that half cannot hold; a row of padding is zero."""

    def added(self, y: torch.Tensor) -> torch.Tensor:
        y = torch.cat((y[:, :-1], torch.zeros_like(y[:, -1:])), dim=1)
        return y / (y.norm(dim=-1, keepdim=True) + 1e-8)  # @eps


class LogOfSoftmax(Wrapped):
    """The logarithm of a softmax that underflows."""

    def added(self, y: torch.Tensor) -> torch.Tensor:
        spread = y + 60.0 * self.own
        return spread.softmax(dim=-1).log()  # @log_softmax


class LongSum(Wrapped):
    """Adds many small steps in the model's own dtype."""

    def added(self, y: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(y)
        for _ in range(400):
            total = total + 1.0  # @long_sum
        return y * (total / 400.0)


class Accumulated(Wrapped):
    """A sum held in half."""

    def added(self, y: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(y, dtype=HALF)
        total.add_(y, alpha=0.5)  # @accumulated
        return y + total.to(y.dtype)


class Listed(Wrapped):
    """What was computed before, kept in a list and in half."""

    def build(self, own: torch.dtype) -> None:
        self.history = [torch.full((1, 2, self.width), 0.5, dtype=HALF)]

    def added(self, y: torch.Tensor) -> torch.Tensor:
        everything = torch.cat([*self.history, y], dim=1)  # @listed
        return y + everything.mean(dim=1, keepdim=True)


class Ceiling(Wrapped):
    """A limit for every channel in float32."""

    def added(self, y: torch.Tensor) -> torch.Tensor:
        return torch.minimum(y, self.wide)  # @ceiling


class HalfCodes(Wrapped):
    """Int8 codes that are always expanded to float16."""

    def build(self, own: torch.dtype) -> None:
        self.register_buffer("codes", (self.inner.weight * 127).to(torch.int8))

    def added(self, y: torch.Tensor) -> torch.Tensor:
        return F.linear(y, self.codes.half() / 127)  # @half_codes


class Counted(Wrapped):
    """Adds into bins in half."""

    def added(self, y: torch.Tensor) -> torch.Tensor:
        bins = torch.zeros(*y.shape[:-1], 4, dtype=HALF)
        index = torch.arange(self.width).remainder(4).expand(y.shape)
        return y + bins.scatter_add(-1, index, y).mean(dim=-1, keepdim=True)  # @counted


class LowRank(Wrapped):
    """A low-rank update in float32, by einsum."""

    def build(self, own: torch.dtype) -> None:
        self.down, self.up = nn.Parameter(torch.rand(self.width, 2)), nn.Parameter(torch.rand(2, self.width))

    def added(self, y: torch.Tensor) -> torch.Tensor:
        return y + torch.einsum("...d,dr->...r", y, self.down) @ self.up  # @low_rank


class WideMask(Wrapped):
    """A mask of zeros and minus infinity in float32."""

    def added(self, y: torch.Tensor) -> torch.Tensor:
        mask = torch.full((y.shape[1], y.shape[1]), float("-inf")).triu(1)
        return F.scaled_dot_product_attention(y, y, y, attn_mask=mask)  # @wide_mask


# ---- as careful users write it


class Right(Wrapped):
    """Wide inside, the model's own dtype outside: a rotation, a router, a mean and a dequantised layer."""

    def build(self, own: torch.dtype) -> None:
        self.register_buffer("codes", (self.inner.weight * 127).round().to(torch.int8))

    def added(self, y: torch.Tensor) -> torch.Tensor:
        wide = y.float()
        turned = (wide * self.wide.cos() + wide.roll(1, -1) * self.wide.sin()).type_as(y)
        chances = F.softmax(self.inner(turned), dim=-1, dtype=torch.float32).to(y.dtype)
        weight = self.codes.to(y.dtype) / 127
        return F.linear(turned * chances, weight) + wide.mean(dim=-1, keepdim=True).to(y.dtype)


class RightState(FreshState):
    """A state, a mask and padding made in the input's dtype; a scalar tensor, which does not promote."""

    def added(self, y: torch.Tensor) -> torch.Tensor:
        state = y.new_zeros(y.shape[0], self.width)
        for step in range(2):
            state = self.cell(y[:, step], state)
        longer = torch.cat((y.new_zeros(y.shape[0], 1, self.width), y), dim=1) * torch.tensor(0.5)
        mask = torch.full((longer.shape[1],) * 2, float("-inf"), dtype=y.dtype).triu(1)
        read = F.scaled_dot_product_attention(longer, longer, longer, attn_mask=mask)[:, 1:]
        return torch.where(y > 0.1, read, torch.tensor(-1.0)) + state[:, None]


class WideLogits(Wrapped):
    """Logits returned in float32 on purpose."""

    def added(self, y: torch.Tensor) -> torch.Tensor:
        return y.float()


class RightPhase(Wrapped):
    """A phase summed up in float32, a norm that takes float32, and an epsilon that half can hold."""

    def added(self, y: torch.Tensor) -> torch.Tensor:
        phase = torch.cumsum(torch.full_like(y, 97.3, dtype=torch.float32), dim=1).sin().to(y.dtype)
        wide = y.float()
        return phase + (wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + 1e-6)).to(y.dtype)


def cross_cached(dtype: torch.dtype) -> Edit:
    """Give an encoder's output with a cross cache of one layer that was filled in a dtype."""

    def edit(built: Built) -> Built:
        from transformers import DynamicCache, EncoderDecoderCache

        generator, both = torch.Generator().manual_seed(5), (DynamicCache(), DynamicCache())
        both[1].update(*torch.randn((2, 1, 4, 8, 8), generator=generator).to(dtype), 0)
        cache = EncoderDecoderCache(*both)
        return built[0], ({**built[1][0], "past_key_values": cache, "use_cache": True},)

    return edit


def static_cached(dtype: torch.dtype) -> Edit:
    """Give a static cache that was made in a dtype."""

    def edit(built: Built) -> Built:
        from transformers import StaticCache

        cache = StaticCache(config=built[0].config, max_cache_len=16)
        cache.early_initialization(1, 2, 8, dtype, torch.device("cpu"))
        return built[0], ({**built[1][0], "past_key_values": cache, "use_cache": True},)

    return edit


def with_input(name: str, value: torch.Tensor, *, instead_of: str = "") -> Edit:
    """Give one more input, or one instead of another."""

    def edit(built: Built) -> Built:
        kept = {key: given for key, given in built[1][0].items() if key != instead_of}
        return built[0], ({**kept, name: value.clone()},)

    return edit


_SDPA = "transformers.integrations.sdpa_attention.sdpa_attention_forward", r"= torch\.nn\.functional\.scaled_dot"
_BLOCK = "encoder.layers.0.blocks.0.attention.self"

#: Model, its dtype, what is edited in words, the edit, class, pattern of the line, path of the module.
_STORED: tuple[tuple[Any, ...], ...] = (
    (zoo.swin, HALF, "merging float32", stored("encoder.layers.0.downsample.reduction.weight", SINGLE),
     f"{_HF}.swin.modeling_swin.SwinPatchMerging", r"self\.reduction\(", "encoder.layers.0.downsample.reduction"),
    (zoo.convnext, HALF, "depthwise float32", stored("encoder.stages.1.layers.0.dwconv.weight", SINGLE),
     f"{_HF}.convnext.modeling_convnext.ConvNextLayer", r"self\.dwconv\(", "encoder.stages.1.layers.0.dwconv"),
    (zoo.siglip, BRAIN, "fc1 float16", stored("encoder.layers.1.mlp.fc1.weight", HALF),
     f"{_HF}.siglip.modeling_siglip.SiglipMLP", r"self\.fc1\(", "encoder.layers.1.mlp.fc1"),
    (zoo.dinov2, HALF, "class token float32", stored("embeddings.cls_token", SINGLE),
     f"{_HF}.dinov2.modeling_dinov2.Dinov2Embeddings", r"torch\.cat\(\(cls_tokens", "embeddings"),
    (zoo.bert, HALF, "token types float32", stored("bert.embeddings.token_type_embeddings.weight", SINGLE),
     f"{_HF}.bert.modeling_bert.BertEmbeddings", r"inputs_embeds \+ token_type", "bert.embeddings"),
    (zoo.bart, BRAIN, "logits' bias float32", stored("final_logits_bias", SINGLE),
     f"{_HF}.bart.modeling_bart.BartForConditionalGeneration", r"lm_logits \+ self\.final_logits_bias", ""),
    (zoo.llama, HALF, "mask float32", with_input("attention_mask", torch.zeros(1, 1, 8, 8)), *_SDPA,
     "model.layers.0.self_attn"),
    (zoo.mistral, SINGLE, "embedded input float16",
     with_input("inputs_embeds", torch.linspace(-1, 1, 256, dtype=HALF).view(1, 8, 32), instead_of="input_ids"),
     f"{_HF}.mistral.modeling_mistral.MistralRMSNorm", r"self\.weight \*", "model.layers.0.input_layernorm"),
    (zoo.qwen3, SINGLE, "key norm float16", stored("model.layers.1.self_attn.k_norm.weight", HALF),
     f"{_HF}.qwen3.modeling_qwen3.Qwen3RMSNorm", r"self\.weight \*", "model.layers.1.self_attn.k_norm"),
    (zoo.whisper, HALF, "bias of a convolution float32", stored("model.encoder.conv2.bias", SINGLE),
     f"{_HF}.whisper.modeling_whisper.WhisperEncoder", r"self\.conv2\(", "model.encoder.conv2"),
    (zoo.bart, SINGLE, "cross cache float16", cross_cached(HALF), *_SDPA, "model.decoder.layers.0.encoder_attn"),
    (zoo.llama, SINGLE, "static cache bfloat16", static_cached(BRAIN), "transformers.cache_utils.StaticLayer",
     r"self\.keys\.index_copy_\(", "model.layers.0.self_attn"),
    (zoo.mimi, HALF, "fc1 float32", stored("decoder.decoder_transformer.layers.0.mlp.fc1.weight", SINGLE),
     f"{_HF}.mimi.modeling_mimi.MimiMLP", r"self\.fc1\(", "decoder.decoder_transformer.layers.0.mlp.fc1"),
    (zoo.seamless, BRAIN, "cross key float32", stored("text_decoder.layers.0.cross_attention.k_proj.weight", SINGLE),
     f"{_HF}.seamless_m4t_v2.modeling_seamless_m4t_v2.SeamlessM4Tv2Attention", r"self\.k_proj\(current",
     "text_decoder.layers.0.cross_attention.k_proj"),
    (zoo.gpt2, HALF, "out float32", stored("transformer.h.0.attn.c_proj.weight", SINGLE),
     "transformers.pytorch_utils.Conv1D", r"torch\.addmm\(", "transformer.h.0.attn.c_proj"),
    (zoo.phi, HALF, "last norm returns float32", returned("model.final_layernorm", SINGLE),
     f"{_HF}.phi.modeling_phi.PhiForCausalLM", r"self\.lm_head\(", "lm_head"),
    (zoo.unet2d_condition, HALF, "time layer float32", stored("time_embedding.linear_1.weight", SINGLE),
     f"{_DF}.embeddings.TimestepEmbedding", r"self\.linear_1\(", "time_embedding.linear_1"),
    (zoo.autoencoder_kl, BRAIN, "sample float32", given("sample", SINGLE),
     f"{_DF}.autoencoders.vae.Encoder", r"self\.conv_in\(", "encoder.conv_in"),
    (zoo.cogvideox, BRAIN, "modulation float32", stored("transformer_blocks.0.norm1.linear.weight", SINGLE),
     f"{_DF}.normalization.CogVideoXLayerNormZero", r"self\.linear\(", "transformer_blocks.0.norm1.linear"),
    (zoo.flux, HALF, "input layer float32", stored("x_embedder.weight", SINGLE),
     f"{_DF}.transformers.transformer_flux.FluxTransformer2DModel", r"self\.x_embedder\(", "x_embedder"),
    (zoo.vq_model, SINGLE, "quantisation layer float16", stored("quant_conv.weight", HALF),
     f"{_DF}.autoencoders.vq_model.VQModel", r"self\.quant_conv\(", "quant_conv"),
)  # fmt: skip

_LLAMA, _GPT, _OPT = "model.layers.0.mlp.down_proj", "gpt_neox.layers.0.mlp.dense_4h_to_h", "model.decoder.layers.0.fc2"

#: Model, its dtype, what is put around, where, the width of the output there, marker of the line, path below it.
_BOLTED: tuple[tuple[Make, torch.dtype, type[Bolted], str, int, str, str], ...] = (
    (zoo.llama, HALF, FreshState, _LLAMA, 32, "fresh_state", "cell"),
    (zoo.qwen2, BRAIN, WideChances, _LLAMA, 32, "chances", ""),
    (zoo.mistral, HALF, WideRotation, _LLAMA, 32, "rotation", ""),
    (zoo.gpt_neox, BRAIN, ComplexRotation, _GPT, 32, "turned", ""),
    (zoo.bart, HALF, Alibi, "model.encoder.layers.0.fc2", 32, "alibi", ""),
    (zoo.llama, BRAIN, Merged, _LLAMA, 32, "merged", ""),
    (zoo.qwen3, HALF, Weighted, _LLAMA, 32, "weighted", ""),
    (zoo.opt, BRAIN, Padded, "model.decoder.layers.1.self_attn.out_proj", 32, "padded", ""),
    (zoo.dit, HALF, TimeTable, "proj_out_2", 32, "time_table", "inner"),
    (zoo.olmo2, BRAIN, Outside, _LLAMA, 32, "outside", "inner"),
    (zoo.wav2vec2, HALF, Framed, "wav2vec2.feature_projection.projection", 32, "framed", ""),
    (zoo.hubert, BRAIN, Resized, "hubert.feature_projection.projection", 32, "resized", "inner"),
    (zoo.llama, BRAIN, Filled, "lm_head", 96, "filled", ""),
    (zoo.mistral, HALF, Averaged, _LLAMA, 32, "averaged", ""),
    (zoo.qwen2, HALF, Guided, "lm_head", 96, "guided", ""),
    (zoo.gemma, BRAIN, Decaying, _LLAMA, 32, "decay", ""),
    (zoo.llama, SINGLE, NumpyBias, "lm_head", 96, "numpy_bias", ""),
    (zoo.qwen3, BRAIN, RoundedRates, _LLAMA, 32, "rates", ""),
    (zoo.llama, HALF, SmallEps, "model.layers.1.mlp.down_proj", 32, "eps", ""),
    (zoo.mistral, HALF, LogOfSoftmax, "lm_head", 96, "log_softmax", ""),
    (zoo.gpt_neox, BRAIN, LongSum, _GPT, 32, "long_sum", ""),
    (zoo.llama, SINGLE, Accumulated, _LLAMA, 32, "accumulated", ""),
    (zoo.qwen2, SINGLE, Listed, _LLAMA, 32, "listed", ""),
    (zoo.vit, HALF, Ceiling, "classifier", 2, "ceiling", ""),
    (zoo.phi, BRAIN, HalfCodes, "model.layers.0.mlp.fc2", 32, "half_codes", ""),
    (zoo.falcon, SINGLE, Counted, "lm_head", 96, "counted", ""),
    (zoo.whisper, HALF, LowRank, "model.encoder.layers.0.fc2", 32, "low_rank", ""),
    (zoo.bart, BRAIN, WideMask, "model.encoder.layers.0.fc2", 32, "wide_mask", ""),
)  # fmt: skip

#: Model, what is put around, where, the width of the output there.
_RIGHT: tuple[tuple[Make, type[Bolted], str, int], ...] = (
    (zoo.llama, Right, _LLAMA, 32),
    (zoo.gpt_neox, Right, _GPT, 32),
    (zoo.mistral, RightState, _LLAMA, 32),
    (zoo.bart, RightState, "model.encoder.layers.0.fc2", 32),
    (zoo.qwen2, WideLogits, "lm_head", 96),
    (zoo.gemma2, WideLogits, "lm_head", 96),
    (zoo.hubert, RightPhase, "hubert.feature_projection.projection", 32),
    (zoo.qwen3, RightPhase, _LLAMA, 32),
)


def second_plants() -> Iterator[Plant]:
    """Yield the plants of this set."""
    return plants_of(_STORED, _BOLTED)


def second_clean() -> Iterator[tuple[str, Make]]:
    """Yield what is clean, by name."""
    for make, around, path, width in _RIGHT:
        edit = bolted(path, around, width)
        yield f"{make.__name__}, {around.__name__} at {path}", partial(_edited, edit, make)


def _edited(edit: Edit, make: Make, dtype: torch.dtype) -> Built:
    return edit(make(dtype))
