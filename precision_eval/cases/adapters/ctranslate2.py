"""Reader of CTranslate2's ``model.bin`` of a Whisper, into the names that transformers gives its tensors.

The file, little-endian: u32 version (6), the name of the spec, u32 revision, u32 count; per variable its name, u8 rank,
u32 dimensions, u8 type, u32 bytes, the bytes; then u32 aliases, two names each. A text is u16 length with its closing
zero. q, k, v of self-attention are one linear, and k, v of cross-attention; k has no bias in Whisper.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from precision_eval.core.errors import IntegrityError

VERSION, SPEC = 6, "WhisperSpec"
_TYPES = {0: "<f4", 1: "<i1", 2: "<i2", 3: "<i4", 4: "<f2"}
_LINEARS = {"ffn/linear_0": "fc1", "ffn/linear_1": "fc2"}


def read_variables(path: Path) -> dict[str, np.ndarray]:
    """Return the variables of a file by their names in it."""
    content, place = path.read_bytes(), 0

    def take(kind: str) -> Any:
        nonlocal place
        size = struct.calcsize(kind)
        (value,) = struct.unpack_from(f"<{kind}", content, place)
        place += size
        return value

    def text() -> str:
        return bytes(take(f"{take('H')}s")).rstrip(b"\0").decode()

    try:
        found = (take("I"), text(), take("I"))[:2]
        if found != (VERSION, SPEC):
            raise IntegrityError(f"{path} is of CTranslate2's format {found}; expected {(VERSION, SPEC)}")
        variables = {}
        for _ in range(take("I")):
            name, shape = text(), [take("I") for _ in range(take("B"))]
            kind = _TYPES[take("B")]
            variables[name] = np.frombuffer(take(f"{take('I')}s"), kind).reshape(shape)
    except (struct.error, KeyError, ValueError) as error:
        raise IntegrityError(f"{path} does not read at byte {place}: {error}; expected a whole model.bin") from error
    return variables


def config_of(variables: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return what transformers' config has to say about these variables."""
    width, mels, _ = variables["encoder/conv1/weight"].shape
    sizes: dict[str, Any] = {"d_model": width, "num_mel_bins": mels, "activation_function": "gelu"}
    for part, places in (("encoder", "max_source_positions"), ("decoder", "max_target_positions")):
        sizes[f"{part}_layers"] = (
            len({name.split("/")[1] for name in variables if name.startswith(f"{part}/layer_")}) - 1
        )
        sizes[f"{part}_attention_heads"] = int(variables[f"{part}/num_heads"])
        sizes[f"{part}_ffn_dim"] = len(variables[f"{part}/layer_0/ffn/linear_0/bias"])
        sizes[places] = len(variables[f"{part}/position_encodings/encodings"])
    return sizes | {"vocab_size": len(variables["decoder/embeddings/weight"])}


def transformers_state(variables: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the state of a ``WhisperForConditionalGeneration``."""
    state: dict[str, np.ndarray] = {}
    for part in ("encoder", "decoder"):
        own = {name.removeprefix(f"{part}/"): value for name, value in variables.items() if name.startswith(f"{part}/")}
        to = f"model.{part}."
        state[f"{to}embed_positions.weight"] = own["position_encodings/encodings"]
        _norm(state, f"{to}layer_norm", own, "layer_norm")
        for index in range(config_of(variables)[f"{part}_layers"]):
            _layer(state, f"{to}layers.{index}.", own, f"layer_{index}/")
    for name in ("conv1", "conv2"):
        _linear(state, f"model.encoder.{name}", variables, f"encoder/{name}")
    embeddings = variables["decoder/embeddings/weight"]
    return state | {"model.decoder.embed_tokens.weight": embeddings, "proj_out.weight": embeddings}


def _layer(state: dict[str, np.ndarray], to: str, own: Mapping[str, np.ndarray], name: str) -> None:
    _attention(state, f"{to}self_attn", own, f"{name}self_attention", joined=("q", "k", "v"))
    if f"{name}attention/linear_0/weight" in own:
        _attention(state, f"{to}encoder_attn", own, f"{name}attention", joined=("k", "v"))
    for linear, target in _LINEARS.items():
        _linear(state, to + target, own, name + linear)
    _norm(state, f"{to}final_layer_norm", own, f"{name}ffn/layer_norm")


def _attention(
    state: dict[str, np.ndarray], to: str, own: Mapping[str, np.ndarray], name: str, *, joined: tuple[str, ...]
) -> None:
    first = len(joined) == 2  # q is a linear of its own before them
    if first:
        _linear(state, f"{to}.q_proj", own, f"{name}/linear_0")
    for kind in ("weight", "bias"):
        parts = np.split(own[f"{name}/linear_{int(first)}/{kind}"], len(joined))
        state |= {f"{to}.{part}_proj.{kind}": value for part, value in zip(joined, parts, strict=True)}
    if state.pop(f"{to}.k_proj.bias").any():
        raise IntegrityError(f"{name} has a bias of k, which Whisper has not; expected zeros")
    _linear(state, f"{to}.out_proj", own, f"{name}/linear_{int(first) + 1}")
    _norm(state, f"{to}_layer_norm", own, f"{name}/layer_norm")


def _linear(state: dict[str, np.ndarray], to: str, own: Mapping[str, np.ndarray], name: str) -> None:
    state |= {f"{to}.weight": own[f"{name}/weight"], f"{to}.bias": own[f"{name}/bias"]}


def _norm(state: dict[str, np.ndarray], to: str, own: Mapping[str, np.ndarray], name: str) -> None:
    state |= {f"{to}.weight": own[f"{name}/gamma"], f"{to}.bias": own[f"{name}/beta"]}
