"""transformers' own classes at tiny random configs, unedited.

Weights are the library's own initialisation after a fixed seed; ``wo`` of T5 is in float32 where the model is float16,
as the library's loader leaves it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from validation.doctor.architectures import maker
from validation.doctor.small import Make


def _ids(entries: int, *shape: int) -> torch.Tensor:
    return torch.randint(2, entries, shape, generator=torch.Generator().manual_seed(0))


def _normal(dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def _maker(name: str, model: str, config: str, inputs: Callable[[torch.dtype], Any], **settings: Any) -> Make:
    """Make a function that builds a class with its input, all of it in one dtype as ``.half()`` leaves it."""
    return maker("transformers", model, inputs, config, name=name, **{"as_loaded": False, **settings})


_T5: dict[str, Any] = {
    "vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
    "feed_forward_proj": "gated-gelu",
}  # fmt: skip
t5_after_half = _maker("t5_after_half", "T5EncoderModel", "T5Config", lambda dtype: _ids(96, 1, 10), **_T5)
t5 = _maker("t5", "T5EncoderModel", "T5Config", lambda dtype: _ids(96, 1, 10), as_loaded=True, **_T5)
"""``wo`` is in float32 where the model is float16, as the library's loader leaves it."""

dia = _maker(
    "dia", "DiaForConditionalGeneration", "DiaConfig",
    lambda dtype: {"input_ids": _ids(250, 1, 8), "decoder_input_ids": _ids(1000, 1, 4, 9), "use_cache": False},
    encoder_config={
        "num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16,
        "intermediate_size": 64, "max_position_embeddings": 64,
    },
    decoder_config={
        "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16, "cross_num_attention_heads": 2, "cross_num_key_value_heads": 2,
        "cross_head_dim": 16, "cross_hidden_size": 32, "max_position_embeddings": 64,
    },
)  # fmt: skip
bark = _maker(
    "bark", "BarkSemanticModel", "BarkSemanticConfig",
    lambda dtype: {"input_ids": _ids(96, 1, 10), "use_cache": False},
    block_size=64, input_vocab_size=96, output_vocab_size=96, num_layers=2, num_heads=4, hidden_size=32,
)  # fmt: skip
musicgen = _maker(
    "musicgen", "MusicgenForCausalLM", "MusicgenDecoderConfig",
    lambda dtype: {"input_ids": _ids(96, 4, 6), "use_cache": False},
    vocab_size=96, max_position_embeddings=64, num_hidden_layers=2, ffn_dim=64, num_attention_heads=4, hidden_size=32,
    num_codebooks=4, pad_token_id=95, bos_token_id=95,
)  # fmt: skip
whisper = _maker(
    "whisper", "WhisperModel", "WhisperConfig",
    lambda dtype: {"input_features": _normal(dtype, (1, 16, 40))[0], "decoder_input_ids": _ids(96, 1, 3),
                   "use_cache": False},
    vocab_size=96, num_mel_bins=16, encoder_layers=1, encoder_attention_heads=4, decoder_layers=1,
    decoder_attention_heads=4, decoder_ffn_dim=64, encoder_ffn_dim=64, d_model=32, max_source_positions=20,
    max_target_positions=16, decoder_start_token_id=1, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    suppress_tokens=None, begin_suppress_tokens=None,
)  # fmt: skip
hifigan = _maker(
    "hifigan", "SpeechT5HifiGan", "SpeechT5HifiGanConfig", lambda dtype: _normal(dtype, (1, 12, 10))[0],
    model_in_dim=10, upsample_initial_channel=16, upsample_rates=[2, 2], upsample_kernel_sizes=[4, 4],
    resblock_kernel_sizes=[3], resblock_dilation_sizes=[[1, 3]],
)  # fmt: skip
vits = _maker(
    "vits", "VitsModel", "VitsConfig", lambda dtype: _ids(38, 1, 6),
    vocab_size=38, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, ffn_dim=32, flow_size=16,
    spectrogram_bins=9, upsample_initial_channel=16, upsample_rates=[2, 2], upsample_kernel_sizes=[4, 4],
    resblock_kernel_sizes=[3], resblock_dilation_sizes=[[1, 3]], duration_predictor_num_flows=2,
    duration_predictor_filter_channels=16, prior_encoder_num_flows=2, prior_encoder_num_wavenet_layers=1,
    posterior_encoder_num_wavenet_layers=1, use_stochastic_duration_prediction=False,
)  # fmt: skip
csm = _maker(
    "csm", "CsmBackboneModel", "CsmConfig", lambda dtype: {"input_ids": _ids(40, 1, 6, 4), "use_cache": False},
    num_codebooks=4, vocab_size=40, text_vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32, pad_token_id=0,
    codebook_pad_token_id=0, bos_token_id=1, audio_token_id=2, audio_eos_token_id=3,
)  # fmt: skip


def _speech_inputs(dtype: torch.dtype) -> dict[str, Any]:
    frames, speaker = _normal(dtype, (1, 6, 10), (1, 8))
    ids = {"input_ids": _ids(40, 1, 8), "use_cache": False}
    return {**ids, "decoder_input_values": frames, "speaker_embeddings": speaker}


speecht5 = _maker(
    "speecht5", "SpeechT5ForTextToSpeech", "SpeechT5Config", _speech_inputs,
    vocab_size=40, hidden_size=32, encoder_layers=1, encoder_attention_heads=4, encoder_ffn_dim=64, decoder_layers=1,
    decoder_ffn_dim=64, decoder_attention_heads=4, num_mel_bins=10, speaker_embedding_dim=8,
    speech_decoder_prenet_units=16, speech_decoder_postnet_units=16, speech_decoder_postnet_layers=2,
    max_speech_positions=40, max_text_positions=40, encoder_max_relative_position=10,
)  # fmt: skip

MODELS: tuple[Make, ...] = (t5, dia, bark, musicgen, whisper, speecht5, hifigan, vits, csm)
