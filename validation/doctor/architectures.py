"""Architectures of transformers and diffusers at tiny random configs, unedited.

Each is built by the library's own class with its own initialisation after a fixed seed, and is clean in float16,
bfloat16 and float32.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import torch

from validation.doctor.scenes import Built, Make

Inputs = Callable[[torch.dtype], dict[str, Any]]

_SPEECH: dict[str, Any] = {
    "vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "conv_dim": (16, 16), "conv_kernel": (8, 4), "conv_stride": (4, 2), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "feat_extract_norm": "group",
}  # fmt: skip
_TEXT: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_GROUPED: dict[str, Any] = {**_TEXT, "num_key_value_heads": 2}
_SEQ2SEQ: dict[str, Any] = {
    "vocab_size": 96, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
_PATCHES: dict[str, Any] = {
    "image_size": 16, "patch_size": 4, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64,
}  # fmt: skip


def _ids(*shape: int) -> torch.Tensor:
    return torch.randint(3, 90, shape, generator=torch.Generator().manual_seed(0))


def _normal(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


def _tokens(dtype: torch.dtype) -> dict[str, Any]:
    return {"input_ids": _ids(1, 8), "use_cache": False}


def _floats(name: str, *shape: int) -> Inputs:
    return lambda dtype: {name: _normal(dtype, *shape)}


def maker(
    library: str,
    model: str,
    inputs: Callable[[torch.dtype], Any],
    config: str | None = None,
    *,
    name: str = "",
    as_loaded: bool = True,
    **settings: Any,
) -> Make:
    """Make a function that builds a class with its inputs, the configuration in a class of its own or not."""

    def make(dtype: torch.dtype) -> Built:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            package = importlib.import_module(library)
            torch.manual_seed(0)
            owner = getattr(package, model)
            built = owner(getattr(package, config)(**settings)) if config else owner(**settings)
        built = built.to(dtype).eval().requires_grad_(False)
        for name, parameter in built.named_parameters():  # as the libraries' loaders leave them
            if as_loaded and dtype is torch.float16 and set(built._keep_in_fp32_modules or ()) & set(name.split(".")):
                parameter.data = parameter.data.float()
        return built, (inputs(dtype),)

    make.__name__ = name or model
    return make


def _language(model: str, config: str, **settings: Any) -> Make:
    return maker("transformers", model, _tokens, config, **settings)


def _hub(model: str, config: str, inputs: Inputs, **settings: Any) -> Make:
    return maker("transformers", model, inputs, config, **settings)


_WAVE = _floats("input_values", 1, 400)
_SOUND = _floats("input_values", 1, 1, 320)
_PICTURE = _floats("pixel_values", 1, 3, 16, 16)

# ---- sound
wav2vec2 = _hub("Wav2Vec2ForCTC", "Wav2Vec2Config", _WAVE, **_SPEECH)
hubert = _hub("HubertForCTC", "HubertConfig", _WAVE, **_SPEECH)
wavlm = _hub("WavLMModel", "WavLMConfig", _WAVE, **_SPEECH)
sew = _hub("SEWModel", "SEWConfig", _WAVE, **_SPEECH, squeeze_factor=2)
unispeech_sat = _hub("UniSpeechSatModel", "UniSpeechSatConfig", _WAVE, **_SPEECH)
data2vec_audio = _hub(
    "Data2VecAudioModel",
    "Data2VecAudioConfig",
    _WAVE,
    **{**_SPEECH, "num_conv_pos_embeddings": 2, "conv_pos_kernel_size": 3},
)
whisper = _hub(
    "WhisperForConditionalGeneration", "WhisperConfig",
    lambda dtype: {"input_features": _normal(dtype, 1, 16, 40), "decoder_input_ids": _ids(1, 4), "use_cache": False},
    **_SEQ2SEQ, num_mel_bins=16, max_source_positions=20, max_target_positions=16, suppress_tokens=None,
    begin_suppress_tokens=None,
)  # fmt: skip
speech_to_text = _hub(
    "Speech2TextForConditionalGeneration", "Speech2TextConfig",
    lambda dtype: {"input_features": _normal(dtype, 1, 24, 16), "decoder_input_ids": _ids(1, 4), "use_cache": False},
    **_SEQ2SEQ, input_feat_per_channel=16, max_source_positions=40, max_target_positions=16, conv_channels=32,
)  # fmt: skip
encodec = _hub(
    "EncodecModel", "EncodecConfig", _SOUND, hidden_size=16, num_filters=4, upsampling_ratios=[4, 2], codebook_size=16,
    codebook_dim=16, num_lstm_layers=1, target_bandwidths=[24.0, 48.0], sampling_rate=1600,
)  # fmt: skip
dac = _hub(
    "DacModel", "DacConfig", _SOUND, encoder_hidden_size=8, downsampling_ratios=[2, 4], decoder_hidden_size=32,
    n_codebooks=2, codebook_size=16, codebook_dim=4,
)  # fmt: skip
mimi = _hub(
    "MimiModel", "MimiConfig", _SOUND, hidden_size=32, num_filters=4, upsampling_ratios=[4, 2], codebook_size=16,
    codebook_dim=16, vector_quantization_hidden_dimension=16, upsample_groups=32, num_hidden_layers=1,
    num_attention_heads=4, num_key_value_heads=4, head_dim=8, intermediate_size=64, num_quantizers=4,
    num_semantic_quantizers=1, sampling_rate=320, frame_rate=20.0, sliding_window=50,
)  # fmt: skip
univnet = _hub(
    "UnivNetModel", "UnivNetConfig",
    lambda dtype: {"input_features": _normal(dtype, 1, 6, 10), "noise_sequence": _normal(dtype, 1, 6, 8)},
    model_in_channels=8, model_hidden_channels=8, num_mel_bins=10, resblock_kernel_sizes=[3],
    resblock_stride_sizes=[4], resblock_dilation_sizes=[[1, 3]], kernel_predictor_num_blocks=1,
    kernel_predictor_hidden_channels=8,
)  # fmt: skip
clap = _hub(
    "ClapTextModelWithProjection", "ClapTextConfig", lambda dtype: {"input_ids": _ids(1, 8)},
    **{**_TEXT, "pad_token_id": 1, "bos_token_id": 0}, projection_dim=16,
)  # fmt: skip
spectrogram = _hub(
    "ASTModel", "ASTConfig", _floats("input_values", 1, 24, 16), hidden_size=32, num_hidden_layers=2,
    num_attention_heads=4, intermediate_size=64, patch_size=4, frequency_stride=4, time_stride=4, max_length=24,
    num_mel_bins=16,
)  # fmt: skip
moonshine = _hub(
    "MoonshineForConditionalGeneration", "MoonshineConfig",
    lambda dtype: {"input_values": _normal(dtype, 1, 1200), "decoder_input_ids": _ids(1, 4), "use_cache": False},
    vocab_size=96, hidden_size=32, intermediate_size=64, encoder_num_hidden_layers=1, decoder_num_hidden_layers=1,
    encoder_num_attention_heads=4, decoder_num_attention_heads=4, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    decoder_start_token_id=1,
)  # fmt: skip
moshi = _hub(
    "MoshiModel", "MoshiConfig", _tokens, vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=4, ffn_dim=64, max_position_embeddings=64, sliding_window=32, audio_vocab_size=16,
    num_codebooks=2, depth_decoder_config={"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "ffn_dim": 32}, audio_encoder_config={"model_type": "mimi", "num_filters": 4},
)  # fmt: skip
seamless = _hub(
    "SeamlessM4Tv2ForTextToText", "SeamlessM4Tv2Config",
    lambda dtype: {"input_ids": _ids(1, 8), "decoder_input_ids": _ids(1, 4), "use_cache": False},
    vocab_size=96, hidden_size=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
    decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=32, pad_token_id=0,
    decoder_start_token_id=1,
)  # fmt: skip

# ---- language
llama = _language("LlamaForCausalLM", "LlamaConfig", **_GROUPED)
mistral = _language("MistralForCausalLM", "MistralConfig", **_GROUPED)
qwen2 = _language("Qwen2ForCausalLM", "Qwen2Config", **_GROUPED)
qwen3 = _language("Qwen3ForCausalLM", "Qwen3Config", **_GROUPED, head_dim=8)
gemma = _language("GemmaForCausalLM", "GemmaConfig", **_GROUPED, head_dim=8)
gemma2 = _language("Gemma2ForCausalLM", "Gemma2Config", **_GROUPED, head_dim=8, query_pre_attn_scalar=8)
olmo2 = _language("Olmo2ForCausalLM", "Olmo2Config", **_GROUPED)
mixtral = _language("MixtralForCausalLM", "MixtralConfig", **_GROUPED, num_local_experts=3)
phi = _language("PhiForCausalLM", "PhiConfig", **_TEXT)
gpt_neox = _language("GPTNeoXForCausalLM", "GPTNeoXConfig", **_TEXT)
gpt2 = _language("GPT2LMHeadModel", "GPT2Config", vocab_size=96, n_positions=64, n_embd=32, n_layer=2, n_head=4)
opt = _language(
    "OPTForCausalLM", "OPTConfig", vocab_size=96, hidden_size=32, word_embed_proj_dim=32, num_hidden_layers=2,
    ffn_dim=64, num_attention_heads=4, max_position_embeddings=64, pad_token_id=0,
)  # fmt: skip
bloom = _language("BloomForCausalLM", "BloomConfig", vocab_size=96, hidden_size=32, n_layer=2, n_head=4)
falcon = _language(
    "FalconForCausalLM", "FalconConfig", vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4
)
mamba = _language(
    "MambaForCausalLM", "MambaConfig", vocab_size=96, hidden_size=32, state_size=4, num_hidden_layers=2,
    residual_in_fp32=False,
)  # fmt: skip
bert = _hub("BertForMaskedLM", "BertConfig", lambda dtype: {"input_ids": _ids(1, 8)}, **_TEXT)
bart = _hub(
    "BartForConditionalGeneration", "BartConfig",
    lambda dtype: {"input_ids": _ids(1, 8), "decoder_input_ids": _ids(1, 4), "use_cache": False}, **_SEQ2SEQ,
    max_position_embeddings=32,
)  # fmt: skip
t5 = _hub(
    "T5ForConditionalGeneration", "T5Config",
    lambda dtype: {"input_ids": _ids(1, 8), "decoder_input_ids": _ids(1, 4), "use_cache": False},
    vocab_size=96, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_decoder_layers=1, num_heads=4,
)  # fmt: skip

# ---- pictures
vit = _hub("ViTForImageClassification", "ViTConfig", _PICTURE, **_PATCHES)
dinov2 = _hub("Dinov2Model", "Dinov2Config", _PICTURE, **{**_PATCHES, "mlp_ratio": 2})
siglip = _hub("SiglipVisionModel", "SiglipVisionConfig", _PICTURE, **_PATCHES)
clip = _hub(
    "CLIPModel", "CLIPConfig",
    lambda dtype: {"input_ids": _ids(1, 8), "pixel_values": _normal(dtype, 1, 3, 16, 16)}, projection_dim=16,
    text_config={**_TEXT, "projection_dim": 16}, vision_config={**_PATCHES, "projection_dim": 16},
)  # fmt: skip
swin = _hub(
    "SwinModel", "SwinConfig", _floats("pixel_values", 1, 3, 32, 32), image_size=32, patch_size=2, embed_dim=16,
    depths=[1, 2], num_heads=[2, 4], window_size=4,
)  # fmt: skip
convnext = _hub(
    "ConvNextModel", "ConvNextConfig", _floats("pixel_values", 1, 3, 32, 32), hidden_sizes=[8, 16], depths=[1, 1],
    num_stages=2,
)  # fmt: skip

# ---- diffusers
unet2d = maker(
    "diffusers", "UNet2DModel",
    lambda dtype: {"sample": _normal(dtype, 1, 3, 16, 16), "timestep": torch.tensor([500])},
    sample_size=16, block_out_channels=(16, 32), norm_num_groups=8, layers_per_block=1, attention_head_dim=8,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
)  # fmt: skip
unet2d_condition = maker(
    "diffusers", "UNet2DConditionModel",
    lambda dtype: {"sample": _normal(dtype, 1, 4, 16, 16), "timestep": torch.tensor([500]),
                   "encoder_hidden_states": _normal(dtype, 1, 5, 24)},
    sample_size=16, block_out_channels=(16, 32), norm_num_groups=8, layers_per_block=1, attention_head_dim=4,
    cross_attention_dim=24, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
)  # fmt: skip
dit = maker(
    "diffusers", "DiTTransformer2DModel",
    lambda dtype: {"hidden_states": _normal(dtype, 1, 4, 8, 8), "timestep": torch.tensor([500]),
                   "class_labels": torch.tensor([3])},
    num_attention_heads=4, attention_head_dim=8, in_channels=4, out_channels=8, num_layers=2, norm_num_groups=8,
    sample_size=8, patch_size=2, num_embeds_ada_norm=10,
)  # fmt: skip
pixart = maker(
    "diffusers", "PixArtTransformer2DModel",
    lambda dtype: {"hidden_states": _normal(dtype, 1, 4, 8, 8), "timestep": torch.tensor([500]),
                   "encoder_hidden_states": _normal(dtype, 1, 5, 24),
                   "added_cond_kwargs": {"resolution": None, "aspect_ratio": None}},
    num_attention_heads=4, attention_head_dim=8, in_channels=4, out_channels=8, num_layers=2, cross_attention_dim=32,
    sample_size=8, patch_size=2, caption_channels=24, use_additional_conditions=False,
)  # fmt: skip
autoencoder_kl = maker(
    "diffusers", "AutoencoderKL", _floats("sample", 1, 3, 16, 16), block_out_channels=(16, 32), norm_num_groups=8,
    down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"), latent_channels=4,
    up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"), layers_per_block=1,
)  # fmt: skip
vq_model = maker(
    "diffusers", "VQModel", _floats("sample", 1, 3, 16, 16), block_out_channels=(16, 32), norm_num_groups=8,
    down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"), latent_channels=4, num_vq_embeddings=16,
    up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"), layers_per_block=1,
)  # fmt: skip
flux = maker(
    "diffusers", "FluxTransformer2DModel",
    lambda dtype: {"hidden_states": _normal(dtype, 1, 16, 4), "encoder_hidden_states": _normal(dtype, 1, 5, 24),
                   "pooled_projections": _normal(dtype, 1, 12), "timestep": torch.tensor([0.5], dtype=dtype),
                   "img_ids": torch.zeros(16, 3), "txt_ids": torch.zeros(5, 3)},
    patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
    joint_attention_dim=24, pooled_projection_dim=12, axes_dims_rope=(4, 4, 8),
)  # fmt: skip
sd3 = maker(
    "diffusers", "SD3Transformer2DModel",
    lambda dtype: {"hidden_states": _normal(dtype, 1, 4, 8, 8), "encoder_hidden_states": _normal(dtype, 1, 5, 24),
                   "pooled_projections": _normal(dtype, 1, 12), "timestep": torch.tensor([500])},
    sample_size=8, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=4,
    joint_attention_dim=24, caption_projection_dim=32, pooled_projection_dim=12, out_channels=4,
)  # fmt: skip
cogvideox = maker(
    "diffusers", "CogVideoXTransformer3DModel",
    lambda dtype: {"hidden_states": _normal(dtype, 1, 2, 4, 8, 8), "encoder_hidden_states": _normal(dtype, 1, 5, 24),
                   "timestep": torch.tensor([500])},
    num_attention_heads=4, attention_head_dim=8, in_channels=4, out_channels=4, time_embed_dim=8, text_embed_dim=24,
    num_layers=2, sample_width=8, sample_height=8, sample_frames=5, patch_size=2, max_text_seq_length=5,
)  # fmt: skip
wan = maker(
    "diffusers", "WanTransformer3DModel",
    lambda dtype: {"hidden_states": _normal(dtype, 1, 4, 2, 8, 8), "encoder_hidden_states": _normal(dtype, 1, 5, 24),
                   "timestep": torch.tensor([500])},
    num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4, text_dim=24, freq_dim=16, ffn_dim=32,
    num_layers=2, qk_norm="rms_norm_across_heads", rope_max_seq_len=32,
)  # fmt: skip
oobleck = maker(
    "diffusers", "AutoencoderOobleck", _floats("sample", 1, 2, 64), encoder_hidden_size=8, downsampling_ratios=[2, 4],
    channel_multiples=[1, 2], decoder_channels=8, decoder_input_channels=4,
)  # fmt: skip

MODELS: tuple[Make, ...] = (
    wav2vec2, hubert, wavlm, sew, unispeech_sat, data2vec_audio, whisper, speech_to_text, encodec, dac, mimi, univnet,
    clap, spectrogram, moonshine, moshi, seamless, llama, mistral, qwen2, qwen3, gemma, gemma2, olmo2,
    mixtral, phi, gpt_neox, gpt2, opt, bloom, falcon, mamba, bert, bart, t5, vit, dinov2, siglip, clip, swin, convnext,
    unet2d, unet2d_condition, dit, pixart, autoencoder_kl, vq_model, flux, sd3, cogvideox, wan, oobleck,
)  # fmt: skip
