"""Read CTranslate2's model.bin of a Whisper into the names that transformers gives its tensors.

Little-endian: u32 version (6), name of the spec, u32 revision, u32 count; per variable its name, u8 rank, u32
dimensions, u8 type, u32 bytes, the bytes. A text is a u16 length and that many bytes, the last one zero.
"""

import struct

import numpy as np

TYPES = {0: "<f4", 1: "<i1", 2: "<i2", 3: "<i4", 4: "<f2"}


def read_variables(path):
    content, place = path.read_bytes(), 0

    def take(kind):
        nonlocal place
        (value,) = struct.unpack_from(f"<{kind}", content, place)
        place += struct.calcsize(f"<{kind}")
        return value

    def text():
        return take(f"{take('H')}s").rstrip(b"\0").decode()

    header = (take("I"), text())
    if header != (6, "WhisperSpec"):
        raise ValueError(f"{path} is of CTranslate2's format {header}; expected (6, 'WhisperSpec')")
    take("I")
    variables = {}
    for _ in range(take("I")):
        name, shape = text(), [take("I") for _ in range(take("B"))]
        kind = TYPES[take("B")]
        variables[name] = np.frombuffer(take(f"{take('I')}s"), kind).reshape(shape)
    return variables


def config_of(variables):
    """Return the arguments of transformers' WhisperConfig."""
    width, mels, _ = variables["encoder/conv1/weight"].shape
    config = {"d_model": width, "num_mel_bins": mels, "vocab_size": len(variables["decoder/embeddings/weight"])}
    for part, positions in (("encoder", "max_source_positions"), ("decoder", "max_target_positions")):
        layers = {name.split("/")[1] for name in variables if name.startswith(f"{part}/layer_")} - {"layer_norm"}
        config[f"{part}_layers"] = len(layers)
        config[f"{part}_attention_heads"] = int(variables[f"{part}/num_heads"])
        config[f"{part}_ffn_dim"] = len(variables[f"{part}/layer_0/ffn/linear_0/bias"])
        config[positions] = len(variables[f"{part}/position_encodings/encodings"])
    return config


def state_of(variables):
    """Return the state dict of transformers' WhisperForConditionalGeneration."""
    state = {}

    def linear(to, name):
        state[f"{to}.weight"], state[f"{to}.bias"] = variables[f"{name}/weight"], variables[f"{name}/bias"]

    def norm(to, name):
        state[f"{to}.weight"], state[f"{to}.bias"] = variables[f"{name}/gamma"], variables[f"{name}/beta"]

    def attention(to, name, joined):
        # Self-attention joins q, k and v in one linear; cross-attention has q first, then k and v joined.
        first = int(len(joined) == 2)
        if first:
            linear(f"{to}.q_proj", f"{name}/linear_0")
        for kind in ("weight", "bias"):
            parts = np.split(variables[f"{name}/linear_{first}/{kind}"], len(joined))
            state.update({f"{to}.{part}_proj.{kind}": value for part, value in zip(joined, parts, strict=True)})
        del state[f"{to}.k_proj.bias"]  # zeros: Whisper has none
        linear(f"{to}.out_proj", f"{name}/linear_{first + 1}")
        norm(f"{to}_layer_norm", f"{name}/layer_norm")

    for part in ("encoder", "decoder"):
        state[f"model.{part}.embed_positions.weight"] = variables[f"{part}/position_encodings/encodings"]
        norm(f"model.{part}.layer_norm", f"{part}/layer_norm")
        for index in range(config_of(variables)[f"{part}_layers"]):
            to, name = f"model.{part}.layers.{index}", f"{part}/layer_{index}"
            attention(f"{to}.self_attn", f"{name}/self_attention", "qkv")
            if part == "decoder":
                attention(f"{to}.encoder_attn", f"{name}/attention", "kv")
            linear(f"{to}.fc1", f"{name}/ffn/linear_0")
            linear(f"{to}.fc2", f"{name}/ffn/linear_1")
            norm(f"{to}.final_layer_norm", f"{name}/ffn/layer_norm")
    linear("model.encoder.conv1", "encoder/conv1")
    linear("model.encoder.conv2", "encoder/conv2")
    for name in ("model.decoder.embed_tokens.weight", "proj_out.weight"):
        state[name] = variables["decoder/embeddings/weight"]
    return state
