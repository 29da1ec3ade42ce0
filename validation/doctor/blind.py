"""Plants over the architectures, written by somebody who had read neither the doctor's rules nor its tests.

Edits are what users do: leave a part in another dtype, bolt on an adapter, keep a state in half, compute a phase in
the model's own dtype. The bolted-on modules here mark the line of their fault by a comment (``# @name``).
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from precision_eval.core.formats import short
from validation.doctor import architectures as zoo
from validation.doctor.plants import BRAIN, HALF, SINGLE, Edit, Plant, given, line_of, stored
from validation.doctor.small import Built, Make


class Bolted(nn.Module):
    """What a user puts around a module of the library; ``width`` is that of the module's output."""

    def __init__(self, base: nn.Linear, width: int) -> None:
        super().__init__()
        self.base, self.width = base, width


class Adapter(Bolted):
    """A low-rank adapter in float32 on a half model, its input not cast."""

    def __init__(self, base: nn.Linear, width: int) -> None:
        super().__init__(base, width)
        self.down, self.up = nn.Linear(base.weight.shape[1], 4), nn.Linear(4, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))  # @adapter_down


class CastingAdapter(Adapter):
    """The same, its input cast and its output not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.up(self.down(x.float()))
        return self.base(x) + wide  # @adapter_sum


class Quantised(Bolted):
    """A linear layer held as int8 with a float32 scale."""

    scale: torch.Tensor
    codes: torch.Tensor

    def __init__(self, base: nn.Linear, width: int) -> None:
        super().__init__(base, width)
        self.register_buffer("scale", base.weight.float().abs().amax(dim=1, keepdim=True) / 127)
        self.register_buffer("codes", (base.weight.float() / self.scale).round().to(torch.int8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.codes * self.scale
        return nn.functional.linear(x, weight)  # @dequantised


class SlicedState(Bolted):
    """Keeps what was last computed in a half buffer, by a slice."""

    state: torch.Tensor

    def __init__(self, base: nn.Linear, width: int) -> None:
        super().__init__(base, width)
        self.register_buffer("state", torch.zeros(1, 64, width, dtype=HALF))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.base(x)
        self.state[:, : y.shape[1]] = y  # @slice
        return self.state[:, : y.shape[1]].to(y.dtype)


class CopiedState(SlicedState):
    """The same by ``copy_``."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.base(x)
        kept = self.state.narrow(1, 0, y.shape[1])
        kept.copy_(y)  # @copied
        return kept.to(y.dtype)


class Scratch(SlicedState):
    """A scratch tensor in half that an operation writes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.base(x)
        scratch = self.state[:, : y.shape[1]]
        torch.mul(y, 0.5, out=scratch)  # @out
        return scratch.to(y.dtype)


class RunningMean(SlicedState):
    """A running mean in half, updated in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.base(x)
        mean = torch.zeros_like(self.state[:, : y.shape[1]])
        mean += 0.1 * y  # @in_place
        return y - mean.to(y.dtype)


class Gated(Bolted):
    """Masked positions take a float32 filler."""

    filler: torch.Tensor

    def __init__(self, base: nn.Linear, width: int) -> None:
        super().__init__(base, width)
        self.register_buffer("filler", torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.base(x)
        return torch.where(y > 0.5, self.filler, y)  # @where


class Prompted(Bolted):
    """Learned float32 vectors put before the sequence, and taken off."""

    def __init__(self, base: nn.Linear, width: int) -> None:
        super().__init__(base, width)
        self.prompt = nn.Parameter(torch.zeros(1, 2, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([self.prompt, self.base(x)], dim=1)  # @prompt
        return joined[:, 2:]


class Windowed(Bolted):
    """A window made by numpy, whose default is float64."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        window = torch.from_numpy(1.0 + 0.1 * np.hanning(self.width))
        return self.base(x) * window  # @window


class Energy(Bolted):
    """Divides by the root of the mean square, in the input's dtype: squares above 65504 overflow float16."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = 5000.0 * self.base(x)
        power = y.square().mean(dim=-1, keepdim=True)  # @power
        return y * torch.rsqrt(power + 1e-6)


class Smooth(Bolted):
    """A log of a sum of exponentials without taking the maximum off."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.base(x)
        total = (20.0 + y).exp().sum(dim=-1, keepdim=True)  # @exponential
        return y - 0.1 * total.log()


class Positions(Bolted):
    """Adds a wave of late positions, which the model's own half cannot count."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.base(x)
        steps = torch.arange(y.shape[1]).add(5001).to(y.dtype)  # @steps
        return y + steps.sin()[None, :, None]


class Phase(Bolted):
    """An oscillator whose phase is summed up in the model's own dtype."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.base(x)
        phase = torch.cumsum(torch.full_like(y, 97.3), dim=1)  # @phase
        return y + phase.sin()


class Variance(Bolted):
    """The mean of the squares less the square of the mean, which cancels."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.base(x) + 30.0
        variance = y.square().mean(dim=-1, keepdim=True) - y.mean(dim=-1, keepdim=True).square()  # @variance
        return y * (variance.abs() + 1e-3).rsqrt()


def bolted(path: str, around: Callable[[Any, int], nn.Module], width: int) -> Edit:
    """Put a module around that at a path."""

    def edit(built: Built) -> Built:
        torch.manual_seed(1)
        base = built[0].get_submodule(path)
        built[0].set_submodule(path, around(base, width).requires_grad_(False).eval())
        return built

    return edit


def cached(dtype: torch.dtype, layers: int, heads: int, width: int = 8) -> Edit:
    """Give a cache of three positions that was filled in a dtype."""

    def edit(built: Built) -> Built:
        from transformers import DynamicCache

        generator, cache = torch.Generator().manual_seed(5), DynamicCache()
        for layer in range(layers):
            keys, values = torch.randn((2, 1, heads, 3, width), generator=generator).to(dtype)
            cache.update(keys, values, layer)
        return built[0], ({**built[1][0], "past_key_values": cache, "use_cache": True},)

    return edit


def scaled(factor: float, *paths: str) -> Edit:
    """Multiply weights, as a bad checkpoint has them."""

    def edit(built: Built) -> Built:
        for path in paths:
            built[0].get_parameter(path).data.mul_(factor)
        return built

    return edit


def late(timestep: float) -> Edit:
    """Give a float32 timestep that half cannot hold."""

    def edit(built: Built) -> Built:
        return built[0], ({**built[1][0], "timestep": torch.tensor([timestep])},)

    return edit


_HF, _DF = "transformers.models", "diffusers.models"
_CACHE = "transformers.cache_utils.DynamicLayer", r"self\.keys = torch\.cat\("
_ADD = r"hidden_states = inputs_embeds \+ "

#: Model, its dtype, what is edited in words, the edit, class, pattern of the line, path of the module.
_STORED: tuple[tuple[Any, ...], ...] = (
    (zoo.wav2vec2, HALF, "head float32", stored("lm_head.weight", SINGLE),
     f"{_HF}.wav2vec2.modeling_wav2vec2.Wav2Vec2ForCTC", r"self\.lm_head\(", "lm_head"),
    (zoo.hubert, BRAIN, "feature projection float32", stored("hubert.feature_projection.projection.weight", SINGLE),
     f"{_HF}.hubert.modeling_hubert.HubertFeatureProjection", r"self\.projection\(",
     "hubert.feature_projection.projection"),
    (zoo.wavlm, HALF, "gate constant float32", stored("encoder.layers.0.attention.gru_rel_pos_const", SINGLE),
     f"{_HF}.wavlm.modeling_wavlm.WavLMAttention", r"gate_output = gate_a", "encoder.layers.0.attention"),
    (zoo.wavlm, BRAIN, "position bias float32", stored("encoder.layers.0.attention.rel_attn_embed.weight", SINGLE),
     f"{_HF}.wavlm.modeling_wavlm.WavLMAttention", r"\* position_bias$", "encoder.layers.0.attention"),
    (zoo.sew, HALF, "wave float32", given("input_values", SINGLE),
     f"{_HF}.sew.modeling_sew.SEWGroupNormConvLayer", r"self\.conv\(hidden_states\)",
     "feature_extractor.conv_layers.0.conv"),
    (zoo.unispeech_sat, BRAIN, "key float16", stored("encoder.layers.1.attention.k_proj.weight", HALF),
     f"{_HF}.unispeech_sat.modeling_unispeech_sat.UniSpeechSatAttention", r"self\.k_proj\(",
     "encoder.layers.1.attention.k_proj"),
    (zoo.data2vec_audio, HALF, "out float32", stored("encoder.layers.0.attention.out_proj.weight", SINGLE),
     f"{_HF}.data2vec.modeling_data2vec_audio.Data2VecAudioAttention", r"self\.out_proj\(",
     "encoder.layers.0.attention.out_proj"),
    (zoo.whisper, BRAIN, "decoder positions float32", stored("model.decoder.embed_positions.weight", SINGLE),
     f"{_HF}.whisper.modeling_whisper.WhisperDecoder", _ADD, "model.decoder"),
    (zoo.speech_to_text, HALF, "encoder positions float32", stored("model.encoder.embed_positions.weights", SINGLE),
     f"{_HF}.speech_to_text.modeling_speech_to_text.Speech2TextEncoder", _ADD, "model.encoder"),
    # The codebook is called by a method, not as a module (corrected after the first score).
    (zoo.encodec, HALF, "first codebook float32", stored("quantizer.layers.0.codebook.embed", SINGLE),
     f"{_HF}.encodec.modeling_encodec.EncodecEuclideanCodebook", r"dist = -\(", ""),
    (zoo.encodec, BRAIN, "recurrent weight float32", stored("encoder.layers.7.lstm.weight_ih_l0", SINGLE),
     f"{_HF}.encodec.modeling_encodec.EncodecLSTM", r"self\.lstm\(", "encoder.layers.7.lstm"),
    (zoo.dac, BRAIN, "codebook float32", stored("quantizer.quantizers.0.codebook.weight", SINGLE),
     f"{_HF}.dac.modeling_dac.DacVectorQuantize", r"dist = -\(", "quantizer.quantizers.0"),
    (zoo.dac, HALF, "alpha float32", stored("encoder.block.0.res_unit1.snake1.alpha", SINGLE),
     f"{_HF}.dac.modeling_dac.Snake1d", r"\.reciprocal\(\) \* torch", "encoder.block.0.res_unit1.snake1"),
    (zoo.mimi, BRAIN, "layer scale float32",
     stored("encoder.encoder_transformer.layers.0.self_attn_layer_scale.scale", SINGLE),
     f"{_HF}.mimi.modeling_mimi.MimiLayerScale", r"self\.scale \* x",
     "encoder.encoder_transformer.layers.0.self_attn_layer_scale"),
    (zoo.univnet, HALF, "noise float32", given("noise_sequence", SINGLE),
     f"{_HF}.univnet.modeling_univnet.UnivNetModel", r"self\.conv_pre\(", "conv_pre"),
    (zoo.clap, HALF, "positions float32", stored("text_model.embeddings.position_embeddings.weight", SINGLE),
     f"{_HF}.clap.modeling_clap.ClapTextEmbeddings", r"embeddings = embeddings \+ position", "text_model.embeddings"),
    (zoo.spectrogram, BRAIN, "distillation token float32", stored("embeddings.distillation_token", SINGLE),
     f"{_HF}.audio_spectrogram_transformer.modeling_audio_spectrogram_transformer.ASTEmbeddings", r"torch\.cat\(",
     "embeddings"),
    (zoo.moonshine, HALF, "second convolution float32", stored("model.encoder.conv2.weight", SINGLE),
     f"{_HF}.moonshine.modeling_moonshine.MoonshineEncoder", r"self\.conv2\(hidden", "model.encoder.conv2"),
    (zoo.moshi, BRAIN, "fc2 float32", stored("layers.0.mlp.fc2.weight", SINGLE),
     f"{_HF}.moshi.modeling_moshi.MoshiGatingMLP", r"self\.fc2\(", "layers.0.mlp.fc2"),
    (zoo.seamless, HALF, "feed-forward float32", stored("text_encoder.layers.0.ffn.fc1.weight", SINGLE),
     f"{_HF}.seamless_m4t_v2.modeling_seamless_m4t_v2.SeamlessM4Tv2FeedForwardNetwork", r"self\.fc1\(",
     "text_encoder.layers.0.ffn.fc1"),
    (zoo.mistral, BRAIN, "cache float32", cached(SINGLE, 2, 2), *_CACHE, "model.layers.0.self_attn"),
    (zoo.qwen2, BRAIN, "cache float16", cached(HALF, 2, 2), *_CACHE, "model.layers.0.self_attn"),
    (zoo.qwen3, HALF, "query norm float32", stored("model.layers.0.self_attn.q_norm.weight", SINGLE),
     f"{_HF}.qwen3.modeling_qwen3.Qwen3RMSNorm", r"self\.weight \*", "model.layers.0.self_attn.q_norm"),
    (zoo.gemma, BRAIN, "embedding float32", stored("model.embed_tokens.weight", SINGLE),
     f"{_HF}.gemma.modeling_gemma.GemmaAttention", r"self\.q_proj\(", "model.layers.0.self_attn.q_proj"),
    (zoo.gemma2, HALF, "out float32", stored("model.layers.0.self_attn.o_proj.weight", SINGLE),
     f"{_HF}.gemma2.modeling_gemma2.Gemma2Attention", r"self\.o_proj\(", "model.layers.0.self_attn.o_proj"),
    (zoo.mixtral, BRAIN, "router float32", stored("model.layers.0.mlp.gate.weight", SINGLE),
     f"{_HF}.mixtral.modeling_mixtral.MixtralTopKRouter", r"F\.linear\(", "model.layers.0.mlp.gate"),
    (zoo.gpt_neox, HALF, "fused projection float32", stored("gpt_neox.layers.0.attention.query_key_value.weight",
     SINGLE),
     f"{_HF}.gpt_neox.modeling_gpt_neox.GPTNeoXAttention", r"self\.query_key_value\(",
     "gpt_neox.layers.0.attention.query_key_value"),
    (zoo.opt, BRAIN, "positions float32", stored("model.decoder.embed_positions.weight", SINGLE),
     f"{_HF}.opt.modeling_opt.OPTDecoder", _ADD, "model.decoder"),
    (zoo.bloom, HALF, "embedding float32", stored("transformer.word_embeddings.weight", SINGLE),
     f"{_HF}.bloom.modeling_bloom.BloomModel", r"self\.word_embeddings_layernorm\(",
     "transformer.word_embeddings_layernorm"),
    (zoo.falcon, BRAIN, "dense float32", stored("transformer.h.0.self_attention.dense.weight", SINGLE),
     f"{_HF}.falcon.modeling_falcon.FalconLinear", r"@ self\.weight", "transformer.h.0.self_attention.dense"),
    (zoo.mamba, HALF, "time weight float32", stored("backbone.layers.0.mixer.dt_proj.weight", SINGLE),
     f"{_HF}.mamba.modeling_mamba.MambaMixer", r"self\.dt_proj\.weight @", "backbone.layers.0.mixer"),
    # The block casts to the norm's dtype: nothing meets before the projection (corrected after the first score).
    (zoo.mamba, BRAIN, "norm float32", stored("backbone.layers.1.norm.weight", SINGLE),
     f"{_HF}.mamba.modeling_mamba.MambaMixer", r"self\.in_proj\(hidden", "backbone.layers.1.mixer.in_proj"),
    (zoo.unet2d, HALF, "sample float32", given("sample", SINGLE),
     f"{_DF}.unets.unet_2d.UNet2DModel", r"self\.conv_in\(", "conv_in"),
    (zoo.unet2d, BRAIN, "time projection float32", stored("down_blocks.0.resnets.0.time_emb_proj.weight", SINGLE),
     f"{_DF}.resnet.ResnetBlock2D", r"self\.time_emb_proj\(", "down_blocks.0.resnets.0.time_emb_proj"),
    (zoo.unet2d_condition, HALF, "text float32", given("encoder_hidden_states", SINGLE),
     f"{_DF}.attention_processor.AttnProcessor2_0", r"attn\.to_k\(",
     "down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k"),
    (zoo.dit, BRAIN, "last projection float32", stored("proj_out_2.weight", SINGLE),
     f"{_DF}.transformers.dit_transformer_2d.DiTTransformer2DModel", r"self\.proj_out_2\(", "proj_out_2"),
    (zoo.autoencoder_kl, HALF, "post-quantisation float32", stored("post_quant_conv.weight", SINGLE),
     f"{_DF}.autoencoders.autoencoder_kl.AutoencoderKL._decode", r"self\.post_quant_conv\(", "post_quant_conv"),
    (zoo.vq_model, BRAIN, "codebook float32", stored("quantize.embedding.weight", SINGLE),
     f"{_DF}.autoencoders.vae.VectorQuantizer", r"torch\.cdist\(", "quantize"),
    # Time is cast to the dtype of the pooled text first (corrected after the first score).
    (zoo.flux, HALF, "pooled text float32", given("pooled_projections", SINGLE),
     f"{_DF}.embeddings.TimestepEmbedding", r"self\.linear_1\(", "time_text_embed.timestep_embedder.linear_1"),
    (zoo.sd3, BRAIN, "text float32", given("encoder_hidden_states", SINGLE),
     f"{_DF}.transformers.transformer_sd3.SD3Transformer2DModel", r"self\.context_embedder\(", "context_embedder"),
    (zoo.cogvideox, HALF, "text projection float32", stored("patch_embed.text_proj.weight", SINGLE),
     f"{_DF}.embeddings.CogVideoXPatchEmbed", r"self\.text_proj\(", "patch_embed.text_proj"),
    # Silent ones: a promotion to float32, or an output in a wider dtype.
    (zoo.llama, SINGLE, "cache float16", cached(HALF, 2, 2), *_CACHE, "model.layers.0.self_attn"),
    (zoo.gpt2, SINGLE, "cache bfloat16", cached(BRAIN, 2, 4), *_CACHE, "transformer.h.0.attn"),
    (zoo.gpt2, SINGLE, "positions float16", stored("transformer.wpe.weight", HALF),
     f"{_HF}.gpt2.modeling_gpt2.GPT2Model", _ADD, "transformer"),
    (zoo.qwen2, SINGLE, "norm float16", stored("model.layers.1.input_layernorm.weight", HALF),
     f"{_HF}.qwen2.modeling_qwen2.Qwen2RMSNorm", r"self\.weight \*", "model.layers.1.input_layernorm"),
    (zoo.bert, SINGLE, "positions bfloat16", stored("bert.embeddings.position_embeddings.weight", BRAIN),
     f"{_HF}.bert.modeling_bert.BertEmbeddings", r"embeddings = embeddings \+ position", "bert.embeddings"),
    (zoo.bart, SINGLE, "encoder positions float16", stored("model.encoder.embed_positions.weight", HALF),
     f"{_HF}.bart.modeling_bart.BartEncoder", _ADD, "model.encoder"),
    (zoo.vit, SINGLE, "positions float16", stored("vit.embeddings.position_embeddings", HALF),
     f"{_HF}.vit.modeling_vit.ViTEmbeddings", r"embeddings = embeddings \+ self\.position_embeddings",
     "vit.embeddings"),
    (zoo.siglip, SINGLE, "positions float16", stored("embeddings.position_embedding.weight", HALF),
     f"{_HF}.siglip.modeling_siglip.SiglipVisionEmbeddings",
     r"embeddings = embeddings \+ self\.position_embedding\(", "embeddings"),
    (zoo.clip, SINGLE, "class embedding float16", stored("vision_model.embeddings.class_embedding", HALF),
     f"{_HF}.clip.modeling_clip.CLIPVisionEmbeddings", r"embeddings = torch\.cat\(", "vision_model.embeddings"),
    (zoo.dinov2, SINGLE, "layer scale bfloat16", stored("encoder.layer.0.layer_scale1.lambda1", BRAIN),
     f"{_HF}.dinov2.modeling_dinov2.Dinov2LayerScale", r"\* self\.lambda1", "encoder.layer.0.layer_scale1"),
    (zoo.convnext, SINGLE, "layer scale float16", stored("encoder.stages.0.layers.0.layer_scale_parameter", HALF),
     f"{_HF}.convnext.modeling_convnext.ConvNextLayer", r"self\.layer_scale_parameter \*", "encoder.stages.0.layers.0"),
    (zoo.pixart, SINGLE, "scale and shift float16", stored("transformer_blocks.0.scale_shift_table", HALF),
     f"{_DF}.attention.BasicTransformerBlock", r"self\.scale_shift_table\[None\] \+", "transformer_blocks.0"),
    (zoo.oobleck, SINGLE, "alpha float16", stored("encoder.block.0.res_unit1.snake1.alpha", HALF),
     f"{_DF}.autoencoders.autoencoder_oobleck.Snake1d", r"\.reciprocal\(\) \* torch",
     "encoder.block.0.res_unit1.snake1"),
    (zoo.flux, BRAIN, "timestep 0.777 float32", late(0.777),
     f"{_DF}.transformers.transformer_flux.FluxTransformer2DModel", r"timestep = timestep\.to\(", ""),
    (zoo.llama, HALF, "overflowing gate", scaled(2e4, "model.layers.0.mlp.gate_proj.weight",
     "model.layers.0.mlp.up_proj.weight"),
     f"{_HF}.llama.modeling_llama.LlamaMLP", r"down_proj = self\.down_proj\(", "model.layers.0.mlp"),
)  # fmt: skip

#: Model, its dtype, what is bolted on, where, the width of the output there, marker of the line, path below it.
_BOLTED: tuple[tuple[Make, torch.dtype, type[Bolted], str, int, str, str], ...] = (
    (zoo.llama, HALF, Adapter, "model.layers.0.self_attn.q_proj", 32, "adapter_down", "down"),
    (zoo.opt, BRAIN, Adapter, "model.decoder.layers.0.fc1", 64, "adapter_down", "down"),
    (zoo.phi, HALF, CastingAdapter, "model.layers.0.mlp.fc1", 64, "adapter_sum", ""),
    (zoo.wan, BRAIN, CastingAdapter, "blocks.0.attn1.to_v", 24, "adapter_sum", ""),
    (zoo.olmo2, BRAIN, Quantised, "model.layers.0.mlp.up_proj", 64, "dequantised", ""),
    (zoo.bart, HALF, Prompted, "model.encoder.layers.0.fc2", 32, "prompt", ""),
    (zoo.gemma2, BRAIN, CastingAdapter, "lm_head", 96, "adapter_sum", ""),
    (zoo.gpt_neox, HALF, CastingAdapter, "lm_head", 96, "adapter_sum", ""),
    (zoo.vit, BRAIN, Gated, "classifier", 2, "where", ""),
    (zoo.sd3, HALF, Prompted, "proj_out", 16, "prompt", ""),
    (zoo.falcon, SINGLE, Windowed, "lm_head", 96, "window", ""),
    (zoo.llama, SINGLE, SlicedState, "model.layers.0.mlp.down_proj", 32, "slice", ""),
    (zoo.whisper, SINGLE, CopiedState, "model.encoder.layers.0.fc2", 32, "copied", ""),
    (zoo.gpt_neox, SINGLE, Scratch, "gpt_neox.layers.0.mlp.dense_4h_to_h", 32, "out", ""),
    (zoo.moonshine, SINGLE, RunningMean, "model.encoder.layers.0.mlp.fc2", 32, "in_place", ""),
    (zoo.hubert, HALF, Energy, "hubert.feature_projection.projection", 32, "power", ""),
    (zoo.unispeech_sat, HALF, Smooth, "feature_projection.projection", 32, "exponential", ""),
    (zoo.mistral, BRAIN, Positions, "model.layers.0.mlp.down_proj", 32, "steps", ""),
    (zoo.data2vec_audio, BRAIN, Phase, "feature_projection.projection", 32, "phase", ""),
    (zoo.wav2vec2, HALF, Variance, "wav2vec2.feature_projection.projection", 32, "variance", ""),
)  # fmt: skip


def source_of(path: str) -> Any:
    """Find a class, or a function in it, by its dotted path."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError:
        return getattr(source_of(module), name)


def blind_plants() -> Iterator[Plant]:
    """Yield the plants of this set."""
    return plants_of(_STORED, _BOLTED)


def plants_of(stored: Iterable[Any], around_modules: Iterable[Any] = ()) -> Iterator[Plant]:
    """Yield the plants in the libraries' own lines, then those in what is put around their modules."""
    for make, dtype, words, edit, owner, pattern, module in stored:
        yield planted(make, dtype, words, edit, source_of(owner), pattern, module)
    for make, dtype, around, path, width, marker, below in around_modules:
        words = f"{around.__name__} at {path}"
        module = f"{path}.{below}" if below else path
        yield planted(make, dtype, words, bolted(path, around, width), around, f"# @{marker}$", module)


def planted(make: Make, dtype: torch.dtype, words: str, edit: Edit, source: Any, pattern: str, module: str) -> Plant:
    name = f"{make.__name__} in {short(dtype)}: {words}"
    return Plant(name, lambda: edit(make(dtype)), Path(inspect.getfile(source)).name, line_of(source, pattern), module)
