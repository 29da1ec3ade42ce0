"""A tiny Whisper of transformers, and the file that CTranslate2 would make of it."""

import struct

import numpy as np
import torch

from precision_eval.cases.adapters import whisper

WIDTH, LAYERS = 8, 2


def tiny_model(*, seed):
    """Random half-precision weights held in float32, with the real model's vocabulary and lengths."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=51864, d_model=WIDTH, encoder_layers=LAYERS, decoder_layers=LAYERS, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, num_mel_bins=80,
        decoder_start_token_id=whisper.START_ID, eos_token_id=whisper.END_ID, pad_token_id=whisper.END_ID,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        model = WhisperForConditionalGeneration(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.copy_((0.5 * torch.randn(parameter.shape, generator=generator)).half().float())
    return model


def variables_of(model):
    """The variables of CTranslate2, written from transformers' names by hand."""
    state = {name: tensor.half().numpy() for name, tensor in model.state_dict().items()}
    made = {"decoder/embeddings/weight": state["model.decoder.embed_tokens.weight"]}
    for part in ("encoder", "decoder"):
        root = f"model.{part}"
        made[f"{part}/num_heads"] = np.array(2, np.int16)
        made[f"{part}/position_encodings/encodings"] = state[f"{root}.embed_positions.weight"]
        made |= _norm(f"{part}/layer_norm", state, f"{root}.layer_norm")
        for i in range(LAYERS):
            here, there = f"{part}/layer_{i}", f"{root}.layers.{i}"
            made |= _fused(f"{here}/self_attention/linear_0", state, f"{there}.self_attn", "qkv")
            made |= _linear(f"{here}/self_attention/linear_1", state, f"{there}.self_attn.out_proj")
            made |= _norm(f"{here}/self_attention/layer_norm", state, f"{there}.self_attn_layer_norm")
            if part == "decoder":
                made |= _linear(f"{here}/attention/linear_0", state, f"{there}.encoder_attn.q_proj")
                made |= _fused(f"{here}/attention/linear_1", state, f"{there}.encoder_attn", "kv")
                made |= _linear(f"{here}/attention/linear_2", state, f"{there}.encoder_attn.out_proj")
                made |= _norm(f"{here}/attention/layer_norm", state, f"{there}.encoder_attn_layer_norm")
            made |= _norm(f"{here}/ffn/layer_norm", state, f"{there}.final_layer_norm")
            made |= _linear(f"{here}/ffn/linear_0", state, f"{there}.fc1")
            made |= _linear(f"{here}/ffn/linear_1", state, f"{there}.fc2")
    for name in ("conv1", "conv2"):
        made |= _linear(f"encoder/{name}", state, f"model.encoder.{name}")
    return made


def _norm(to, state, name):
    return {f"{to}/gamma": state[f"{name}.weight"], f"{to}/beta": state[f"{name}.bias"]}


def _linear(to, state, name):
    return {f"{to}/weight": state[f"{name}.weight"], f"{to}/bias": state[f"{name}.bias"]}


def _fused(to, state, name, letters):
    zeros = np.zeros(WIDTH, np.float16)
    parts = [f"{name}.{letter}_proj" for letter in letters]
    return {
        f"{to}/weight": np.concatenate([state[f"{part}.weight"] for part in parts]),
        f"{to}/bias": np.concatenate([state.get(f"{part}.bias", zeros) for part in parts]),
    }


def written(variables, path):
    """Write variables in CTranslate2's format, version 6."""
    kinds = {np.dtype(np.float16): 4, np.dtype(np.int16): 2}
    content = struct.pack("<I", 6) + _text("WhisperSpec") + struct.pack("<II", 3, len(variables))
    for name, value in variables.items():
        content += _text(name) + struct.pack(f"<B{value.ndim}I", value.ndim, *value.shape)
        content += struct.pack("<BI", kinds[value.dtype], value.nbytes) + value.tobytes()
    path.write_bytes(
        content + struct.pack("<I", 1) + _text("decoder/projection/weight") + _text("decoder/embeddings/weight")
    )
    return path


def _text(text):
    return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"
