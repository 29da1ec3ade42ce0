"""transformers' own classes at tiny random configs, unedited, and plants in them.

Weights are the library's own initialisation after a fixed seed. The line of a plant's truth is the one
line of a class (or function) that matches a pattern; ``wo`` of T5 is in float32 where the model is float16, as the
library's loader leaves it.
"""

from __future__ import annotations

import importlib
import inspect
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from validation.doctor.plants import BRAIN, HALF, SINGLE, Edit, Plant, given, stored
from validation.doctor.small import Built, Make


def _library() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers

    return transformers


def _ids(entries: int, *shape: int) -> torch.Tensor:
    return torch.randint(2, entries, shape, generator=torch.Generator().manual_seed(0))


def _made(model_class: str, config: Any, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = getattr(_library(), model_class)(config)
    return model.to(dtype).eval().requires_grad_(False)


def t5(dtype: torch.dtype) -> Built:
    """The encoder."""
    config = _library().T5Config(
        vocab_size=96, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu"
    )
    model = _made("T5EncoderModel", config, dtype)
    if dtype is HALF:
        for name, parameter in model.named_parameters():
            if ".wo." in name:
                parameter.data = parameter.data.float()
    return model, (_ids(96, 1, 10),)


def t5_after_half(dtype: torch.dtype) -> Built:
    """The encoder with everything in one dtype, as ``.half()`` after the loading leaves it."""
    model, inputs = t5(dtype)
    return model.to(dtype), inputs


def dia(dtype: torch.dtype) -> Built:
    """Encoder and decoder."""
    library = _library()
    encoder = library.DiaEncoderConfig(
        num_hidden_layers=1, hidden_size=32, num_attention_heads=2, num_key_value_heads=2, head_dim=16,
        intermediate_size=64, max_position_embeddings=64,
    )  # fmt: skip
    decoder = library.DiaDecoderConfig(
        num_hidden_layers=2, hidden_size=32, intermediate_size=64, num_attention_heads=2, num_key_value_heads=1,
        head_dim=16, cross_num_attention_heads=2, cross_num_key_value_heads=2, cross_head_dim=16,
        cross_hidden_size=32, max_position_embeddings=64,
    )  # fmt: skip
    model = _made(
        "DiaForConditionalGeneration", library.DiaConfig(encoder_config=encoder, decoder_config=decoder), dtype
    )
    inputs = {"input_ids": _ids(250, 1, 8), "decoder_input_ids": _ids(1000, 1, 4, 9), "use_cache": False}
    return model, (inputs,)


def bark(dtype: torch.dtype) -> Built:
    """The semantic model."""
    config = _library().BarkSemanticConfig(
        block_size=64, input_vocab_size=96, output_vocab_size=96, num_layers=2, num_heads=4, hidden_size=32
    )
    return _made("BarkSemanticModel", config, dtype), ({"input_ids": _ids(96, 1, 10), "use_cache": False},)


def musicgen(dtype: torch.dtype) -> Built:
    """The decoder by itself."""
    config = _library().MusicgenDecoderConfig(
        vocab_size=96, max_position_embeddings=64, num_hidden_layers=2, ffn_dim=64, num_attention_heads=4,
        hidden_size=32, num_codebooks=4, pad_token_id=95, bos_token_id=95,
    )  # fmt: skip
    return _made("MusicgenForCausalLM", config, dtype), ({"input_ids": _ids(96, 4, 6), "use_cache": False},)


def whisper(dtype: torch.dtype) -> Built:
    """Encoder and decoder."""
    config = _library().WhisperConfig(
        vocab_size=96, num_mel_bins=16, encoder_layers=1, encoder_attention_heads=4, decoder_layers=1,
        decoder_attention_heads=4, decoder_ffn_dim=64, encoder_ffn_dim=64, d_model=32, max_source_positions=20,
        max_target_positions=16, decoder_start_token_id=1, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    features = torch.randn(1, 16, 40, generator=torch.Generator().manual_seed(0)).to(dtype)
    ids = {"decoder_input_ids": _ids(96, 1, 3), "use_cache": False}
    return _made("WhisperModel", config, dtype), ({"input_features": features, **ids},)


def speecht5(dtype: torch.dtype) -> Built:
    """Text to spectrogram frames, one step."""
    config = _library().SpeechT5Config(
        vocab_size=40, hidden_size=32, encoder_layers=1, encoder_attention_heads=4, encoder_ffn_dim=64,
        decoder_layers=1, decoder_ffn_dim=64, decoder_attention_heads=4, num_mel_bins=10, speaker_embedding_dim=8,
        speech_decoder_prenet_units=16, speech_decoder_postnet_units=16, speech_decoder_postnet_layers=2,
        max_speech_positions=40, max_text_positions=40, encoder_max_relative_position=10,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    frames, speaker = (torch.randn(shape, generator=generator).to(dtype) for shape in ((1, 6, 10), (1, 8)))
    inputs = {
        "input_ids": _ids(40, 1, 8), "decoder_input_values": frames, "speaker_embeddings": speaker, "use_cache": False,
    }  # fmt: skip
    return _made("SpeechT5ForTextToSpeech", config, dtype), (inputs,)


def hifigan(dtype: torch.dtype) -> Built:
    """SpeechT5's vocoder."""
    config = _library().SpeechT5HifiGanConfig(
        model_in_dim=10, upsample_initial_channel=16, upsample_rates=[2, 2], upsample_kernel_sizes=[4, 4],
        resblock_kernel_sizes=[3], resblock_dilation_sizes=[[1, 3]],
    )  # fmt: skip
    spectrogram = torch.randn(1, 12, 10, generator=torch.Generator().manual_seed(0)).to(dtype)
    return _made("SpeechT5HifiGan", config, dtype), (spectrogram,)


def vits(dtype: torch.dtype) -> Built:
    """Text to samples."""
    config = _library().VitsConfig(
        vocab_size=38, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, ffn_dim=32, flow_size=16,
        spectrogram_bins=9, upsample_initial_channel=16, upsample_rates=[2, 2], upsample_kernel_sizes=[4, 4],
        resblock_kernel_sizes=[3], resblock_dilation_sizes=[[1, 3]], duration_predictor_num_flows=2,
        duration_predictor_filter_channels=16, prior_encoder_num_flows=2, prior_encoder_num_wavenet_layers=1,
        posterior_encoder_num_wavenet_layers=1, use_stochastic_duration_prediction=False,
    )  # fmt: skip
    return _made("VitsModel", config, dtype), (_ids(38, 1, 6),)


def csm(dtype: torch.dtype) -> Built:
    """The backbone."""
    config = _library().CsmConfig(
        num_codebooks=4, vocab_size=40, text_vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32, pad_token_id=0,
        codebook_pad_token_id=0, bos_token_id=1, audio_token_id=2, audio_eos_token_id=3,
    )  # fmt: skip
    return _made("CsmBackboneModel", config, dtype), ({"input_ids": _ids(40, 1, 6, 4), "use_cache": False},)


MODELS: tuple[Make, ...] = (
    t5, dia, bark, musicgen, whisper, speecht5, hifigan, vits, csm,
)  # fmt: skip

_Q = r"query_states = \(?self\.q_proj\("

#: Model, its dtype, what is edited in words, the edit, class of the library, pattern of the line, path of the module.
_PLANTS: tuple[tuple[Make, torch.dtype, str, Edit, str, str, str], ...] = (
    (t5, HALF, "q float32", stored("encoder.block.1.layer.0.SelfAttention.q.weight", SINGLE), "t5.T5Attention",
     r"self\.q\(", "encoder.block.1.layer.0.SelfAttention.q"),
    (t5, BRAIN, "norm float32", stored("encoder.block.0.layer.0.layer_norm.weight", SINGLE), "t5.T5Attention",
     r"self\.q\(", "encoder.block.0.layer.0.SelfAttention.q"),
    (t5, BRAIN, "wi_0 float16", stored("encoder.block.0.layer.1.DenseReluDense.wi_0.weight", HALF),
     "t5.T5DenseGatedActDense", r"self\.wi_0\(", "encoder.block.0.layer.1.DenseReluDense.wi_0"),
    (t5_after_half, HALF, "wo float16", lambda built: built, "t5.T5DenseGatedActDense", r"self\.wo\(",
     "encoder.block.0.layer.1.DenseReluDense.wo"),
    (dia, HALF, "decoder norm float32", stored("model.decoder.layers.0.pre_sa_norm.weight", SINGLE), "dia.DiaRMSNorm",
     r"self\.weight \*", "model.decoder.layers.0.pre_sa_norm"),
    (dia, BRAIN, "encoder norm float32", stored("model.encoder.layers.0.pre_sa_norm.weight", SINGLE),
     "dia.DiaRMSNorm", r"self\.weight \*", "model.encoder.layers.0.pre_sa_norm"),
    (dia, HALF, "k_proj bfloat16", stored("model.decoder.layers.1.self_attention.k_proj.weight", BRAIN),
     "dia.DiaSelfAttention", r"self\.k_proj\(", "model.decoder.layers.1.self_attention.k_proj"),
    (bark, BRAIN, "positions float32", stored("position_embeds_layer.weight", SINGLE), "bark.BarkCausalModel",
     r"inputs_embeds \+ position_embeds", ""),
    (bark, HALF, "lm_head float32", stored("lm_head.weight", SINGLE), "bark.BarkCausalModel", r"self\.lm_head\(",
     "lm_head"),
    (bark, HALF, "in_proj float32", stored("layers.1.mlp.in_proj.weight", SINGLE), "bark.BarkMLP",
     r"self\.in_proj\(", "layers.1.mlp.in_proj"),
    (musicgen, HALF, "positions float32", stored("model.decoder.embed_positions.weights", SINGLE),
     "musicgen.MusicgenDecoder", r"hidden_states = inputs_embeds \+ positions", "model.decoder"),
    (musicgen, BRAIN, "fc1 float32", stored("model.decoder.layers.0.fc1.weight", SINGLE),
     "musicgen.MusicgenDecoderLayer", r"self\.fc1\(", "model.decoder.layers.0.fc1"),
    (whisper, HALF, "positions float32", stored("encoder.embed_positions.weight", SINGLE), "whisper.WhisperEncoder",
     r"inputs_embeds \+ self\.embed_positions", "encoder"),
    (whisper, BRAIN, "v_proj float32", stored("decoder.layers.0.encoder_attn.v_proj.weight", SINGLE),
     "whisper.WhisperAttention", r"self\.v_proj\(", "decoder.layers.0.encoder_attn.v_proj"),
    (whisper, HALF, "features float32", lambda built: (built[0], (
        {**built[1][0], "input_features": built[1][0]["input_features"].float()},)), "whisper.WhisperEncoder",
     r"self\.conv1\(input_features\)", "encoder.conv1"),
    (speecht5, BRAIN, "pe float32", stored("speecht5.encoder.prenet.encode_positions.pe", SINGLE),
     "speecht5.SpeechT5ScaledPositionalEncoding", r"emb = emb \+ self\.alpha",
     "speecht5.encoder.prenet.encode_positions"),
    (speecht5, HALF, "prob_out float32", stored("speech_decoder_postnet.prob_out.weight", SINGLE),
     "speecht5.SpeechT5SpeechDecoderPostnet", r"self\.prob_out\(", "speech_decoder_postnet.prob_out"),
    (hifigan, BRAIN, "mean float32", stored("mean", SINGLE), "speecht5.SpeechT5HifiGan", r"- self\.mean\) /", ""),
    (hifigan, HALF, "spectrogram float32", given(0, SINGLE), "speecht5.SpeechT5HifiGan", r"- self\.mean\) /", ""),
    (vits, BRAIN, "project float32", stored("text_encoder.project.weight", SINGLE), "vits.VitsTextEncoder",
     r"self\.project\(", "text_encoder.project"),
    (vits, BRAIN, "k_proj float32", stored("text_encoder.encoder.layers.0.attention.k_proj.weight", SINGLE),
     "vits.VitsAttention", r"self\.k_proj\(hidden_states\)", "text_encoder.encoder.layers.0.attention.k_proj"),
    (csm, HALF, "norm float32", stored("layers.1.post_attention_layernorm.weight", SINGLE), "csm.CsmRMSNorm",
     r"self\.weight \*", "layers.1.post_attention_layernorm"),
    (csm, BRAIN, "embedding float32", stored("embed_tokens.embed_audio_tokens.weight", SINGLE), "csm.CsmRMSNorm",
     r"self\.weight \*", "layers.0.input_layernorm"),
    (csm, BRAIN, "o_proj float16", stored("layers.0.self_attn.o_proj.weight", HALF), "csm.CsmAttention",
     r"self\.o_proj\(", "layers.0.self_attn.o_proj"),
)  # fmt: skip


def library_plants() -> tuple[Plant, ...]:
    """List the plants in transformers' classes."""
    return tuple(_plant(*row) for row in _PLANTS)


def _plant(
    make: Make,
    dtype: torch.dtype,
    words: str,
    edit: Edit,
    owner: str,
    pattern: str,
    module: str,
) -> Plant:
    room, name = owner.split(".")
    source = importlib.import_module(f"transformers.models.{room}.modeling_{room}")
    lines, first = inspect.getsourcelines(getattr(source, name))
    (line,) = [first + index for index, text in enumerate(lines) if re.search(pattern, text)]
    assert source.__file__ is not None

    def built() -> Built:
        return edit(make(dtype))

    title = f"{make.__name__} in {str(dtype).removeprefix('torch.')}: {words}"
    return Plant(title, built, Path(source.__file__).name, line, module)
