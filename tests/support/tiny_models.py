"""Tiny random configs of real classes of transformers and diffusers, each as a factory of a case that has the bug."""

import diffusers as D
import torch
import transformers as T
from transformers.models.bark import generation_configuration_bark as B

from precision_eval import generation_case

# fmt: off
IDS = {"input_ids": torch.tensor([[5, 6, 7, 8, 9]])}
TEXT = {"input_ids": torch.arange(3, 60)[None]}
TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
LAYERS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
DECODER = {"vocab_size": 64, **LAYERS, "intermediate_size": 64}
GROUPED = {**DECODER, "num_key_value_heads": 2}
T5 = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
BART = {"vocab_size": 64, "d_model": 32,
        **{f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in
        (("layers", 2), ("attention_heads", 4), ("ffn_dim", 64))}}
CODEC = {"audio_channels": 1, "hidden_size": 32, "num_filters": 4, "upsampling_ratios": [8, 4], "codebook_size": 64,
         "sampling_rate": 16000}
ENCODEC = {**CODEC, "codebook_dim": 32, "num_lstm_layers": 1, "target_bandwidths": [96.0]}
MIMI = {**CODEC, **LAYERS, "model_type": "mimi", "codebook_dim": 16, "vector_quantization_hidden_dimension": 16,
        "num_quantizers": 4, "num_semantic_quantizers": 1, "num_key_value_heads": 4, "head_dim": 8,
        "intermediate_size": 64, "upsample_groups": 32, "frame_rate": 250}
VOCODER = {"upsample_initial_channel": 16, "upsample_rates": [8, 4], "upsample_kernel_sizes": [16, 8],
           "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3]]}


def make_llama():
    return T.LlamaForCausalLM(T.LlamaConfig(**DECODER, **TOKENS)), IDS


def make_t5():
    return T.T5ForConditionalGeneration(T.T5Config(**T5, decoder_start_token_id=0)), IDS


def make_whisper():
    config = T.WhisperConfig(
        **BART, **TOKENS, num_mel_bins=16, max_source_positions=20, max_target_positions=60, decoder_start_token_id=3,
        suppress_tokens=None, begin_suppress_tokens=None,
    )
    return T.WhisperForConditionalGeneration(config), {"input_features": torch.randn(1, 16, 40)}


def make_moonshine():
    config = T.MoonshineConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, encoder_num_hidden_layers=2, decoder_num_hidden_layers=2,
        encoder_num_attention_heads=4, decoder_num_attention_heads=4, decoder_start_token_id=1, **TOKENS,
        max_position_embeddings=64,
    )
    return T.MoonshineForConditionalGeneration(config), {"input_values": torch.randn(1, 4000)}


def make_musicgen():
    decoder = T.MusicgenDecoderConfig(
        vocab_size=64, **LAYERS, ffn_dim=64, num_codebooks=4, pad_token_id=64, bos_token_id=64
    )
    parts = {"text_encoder": T.T5Config(**T5), "audio_encoder": T.EncodecConfig(**ENCODEC), "decoder": decoder}
    return T.MusicgenForConditionalGeneration(T.MusicgenConfig(**parts)), IDS


def make_dia():
    special = {"bos_token_id": 66, "eos_token_id": 64, "pad_token_id": 65}
    encoder = {**DECODER, "num_key_value_heads": 4, "head_dim": 8, "max_position_embeddings": 32}
    decoder = {
        **GROUPED, **special, "head_dim": 8, "cross_num_attention_heads": 4, "cross_head_dim": 8, "vocab_size": 68,
        "cross_num_key_value_heads": 4, "cross_hidden_size": 32, "num_channels": 3, "max_position_embeddings": 64,
    }
    config = T.DiaConfig(encoder_config=encoder, decoder_config=decoder, delay_pattern=[0, 1, 2], **special)
    model = T.DiaForConditionalGeneration(config)
    model.generation_config.min_new_tokens = 75  # random weights would stop at any step
    return model, IDS


def make_csm():
    depth = {**GROUPED, "num_codebooks": 4, "backbone_hidden_size": 32, "head_dim": 8, "max_position_embeddings": 8}
    config = T.CsmConfig(
        **GROUPED, num_codebooks=4, text_vocab_size=64, head_dim=8, depth_decoder_config=depth, codec_config=MIMI,
        codebook_pad_token_id=62, codebook_eos_token_id=63, audio_token_id=60, audio_eos_token_id=61, bos_token_id=1,
        eos_token_id=None, pad_token_id=0,
    )
    return T.CsmForConditionalGeneration(config), IDS


def make_bark():
    size = {"block_size": 64, "num_layers": 2, "num_heads": 4, "hidden_size": 32}
    model = T.BarkModel(T.BarkConfig(
        semantic_config=T.BarkSemanticConfig(input_vocab_size=200, output_vocab_size=64, **size),
        coarse_acoustics_config=T.BarkCoarseConfig(input_vocab_size=200, output_vocab_size=200, **size),
        fine_acoustics_config=T.BarkFineConfig(
            input_vocab_size=66, output_vocab_size=66, n_codes_total=4, n_codes_given=1, **size
        ),
        codec_config=T.EncodecConfig(**ENCODEC),
    ))
    semantic = B.BarkSemanticGenerationConfig(
        eos_token_id=62, text_encoding_offset=60, text_pad_token=190, semantic_infer_token=191, semantic_vocab_size=40,
        max_input_semantic_length=16, semantic_rate_hz=50, semantic_pad_token=63,
    )
    coarse = B.BarkCoarseGenerationConfig(
        coarse_semantic_pad_token=190, n_coarse_codebooks=1, coarse_infer_token=191, max_coarse_input_length=16,
        max_coarse_history=30, sliding_window_len=10,
    )
    fine = B.BarkFineGenerationConfig(max_fine_history_length=16, max_fine_input_length=32, n_fine_codebooks=4)
    model.generation_config = T.GenerationConfig(
        semantic_config=semantic.to_dict(), coarse_acoustics_config=coarse.to_dict(), sample_rate=8000,
        fine_acoustics_config=fine.to_dict(), codebook_size=64,
    )
    return model, {"input_ids": torch.full((1, 16), 7)}


def make_speecht5():
    config = T.SpeechT5Config(
        vocab_size=64, hidden_size=32, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=64, num_mel_bins=16,
        decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=64, speaker_embedding_dim=16, reduction_factor=2,
        speech_decoder_prenet_units=32, speech_decoder_postnet_layers=2, speech_decoder_postnet_units=32,
    )
    inputs = {**IDS, "speaker_embeddings": torch.randn(1, 16), "threshold": 9.0}  # of the probability to stop
    return T.SpeechT5ForTextToSpeech(config), inputs


def make_vits():
    config = T.VitsConfig(
        **DECODER, **VOCODER, ffn_dim=64, flow_size=32, spectrogram_bins=33, prior_encoder_num_flows=2,
        prior_encoder_num_wavenet_layers=2, posterior_encoder_num_wavenet_layers=2, duration_predictor_num_flows=2,
        wavenet_dilation_rate=1, depth_separable_channels=2, depth_separable_num_layers=2,
    )
    return T.VitsModel(config), TEXT


def make_fastspeech2():
    sides = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in
             (("layers", 2), ("num_attention_heads", 4), ("linear_units", 64))}
    channels = {f"{name}_predictor_channels": 32 for name in ("duration", "energy", "pitch")}
    model = T.FastSpeech2ConformerConfig(
        hidden_size=32, vocab_size=64, num_mel_bins=16, speech_decoder_postnet_layers=2,
        speech_decoder_postnet_units=32, **sides, **channels,
    )
    vocoder = T.FastSpeech2ConformerHifiGanConfig(model_in_dim=16, **VOCODER)
    config = T.FastSpeech2ConformerWithHifiGanConfig(model_config=model.to_dict(), vocoder_config=vocoder.to_dict())
    return T.FastSpeech2ConformerWithHifiGan(config), TEXT


def make_dance_diffusion():
    unet = D.UNet1DModel(
        sample_size=2048, sample_rate=16000, in_channels=2, out_channels=2, extra_in_channels=64,
        block_out_channels=(32, 32), down_block_types=("DownBlock1DNoSkip", "AttnDownBlock1D"),
        up_block_types=("AttnUpBlock1D", "UpBlock1DNoSkip"), mid_block_type="UNetMidBlock1D",
    )
    return D.DanceDiffusionPipeline(unet, D.IPNDMScheduler()), {"num_inference_steps": 3}


def make_ddpm_step():
    unet = D.UNet2DModel(
        sample_size=16, block_out_channels=(32, 32), norm_num_groups=8, layers_per_block=1,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    return D.DDPMPipeline(unet, D.DDPMScheduler()), {}


def make_dit_loop():
    transformer = D.DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8, in_channels=4, num_layers=1, sample_size=8, out_channels=8,
        num_embeds_ada_norm=1000,
    )
    vae = D.AutoencoderKL(block_out_channels=(32,), norm_num_groups=8, latent_channels=4)
    pipeline = D.DiTPipeline(transformer, vae, D.DDIMScheduler())
    return pipeline, {"class_labels": [1], "num_inference_steps": 3}
# fmt: on


def hifigan():
    return T.SpeechT5HifiGan(T.SpeechT5HifiGanConfig(model_in_dim=16, initializer_range=0.3, **VOCODER)).eval()


def dac():
    return T.DacModel(
        T.DacConfig(
            encoder_hidden_size=8,
            downsampling_ratios=[4, 8],
            decoder_hidden_size=32,
            n_codebooks=3,
            codebook_size=64,
            codebook_dim=4,
        )
    ).eval()


OTHERS = {
    "fastspeech2": lambda: {"rate_hz": 8000},
    "speecht5": lambda: {"vocoder": hifigan()},
    "dia": lambda: {"vocoder": dac()},
}
# The part that stays float32, where the first of the model does not raise.
WIDE = {"musicgen": "decoder.model.decoder.embed_tokens.0"}


def split(model, wide=None):
    """Put a model into the state of the bug: half, but for one part, the first that its call meets."""
    model.half()
    leaves = (part for part in model.modules() if next(part.children(), None) is None)
    part = next(part for part in leaves if next(part.parameters(), None) is not None)
    (model.get_submodule(wide) if wide else part).float()
    return model


def _factory(name):
    def factory():
        torch.manual_seed(0)
        own = generation_case(*globals()[f"make_{name}"](), new_tokens=80, **OTHERS.get(name, dict)())
        for place, buffer in own.model.named_buffers():
            if place.endswith((".embed", ".embed_sum")):
                buffer.normal_()  # codebooks are zero until they are trained, and all codes would sound alike
        split(own.model, WIDE.get(name))
        return own

    return factory


CLASSES = tuple(name.removeprefix("make_") for name in dir() if name.startswith("make_"))
globals().update({name: _factory(name) for name in CLASSES})
