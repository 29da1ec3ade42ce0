"""Hugging Face ``config.json`` files as plans' configurations: Dia, T5's encoder, GPT-2 and Llama's relatives.

Conventions: keys and their defaults as in transformers' configuration classes [1]_. A key that is missing and has no
default there is an error. Weights, norms and caches have the dtype of ``dtype`` (older: ``torch_dtype``); T5 in float16
keeps its output projection ``wo`` in float32, as ``from_pretrained`` does. For Dia and T5 what landed is what
transformers itself does, which is what is planned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from precision_eval.core.errors import ParameterError
from precision_eval.studies.memory.models import Activation, ModelConfig, Shipped, Stack


def _int(where: str, data: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = data.get(key)
    if value is None:
        value = default
    if value is None:
        raise ParameterError(f"{where} lacks '{key}'; add it")
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ParameterError(f"{where}: '{key}' is {value!r}; expected a positive integer")
    return value


def _flag(where: str, data: Mapping[str, Any], key: str, *, default: bool) -> bool:
    value = data.get(key, default)
    if not isinstance(value, bool):
        raise ParameterError(f"{where}: '{key}' is {value!r}; expected true or false")
    return value


def _part(where: str, data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    if not isinstance(value, dict):
        raise ParameterError(f"{where} lacks '{key}', an object; give the file that save_pretrained wrote")
    return value


def _dtype(data: Mapping[str, Any]) -> str:
    return str(data.get("dtype") or data.get("torch_dtype") or "float32").removeprefix("torch.")


def _shared_width(where: str, width: int, heads: int) -> int:
    """Divide a width among heads that must fill it."""
    if width % heads:
        raise ParameterError(
            f"{where}: width {width} is no multiple of {heads} heads, and no head_dim is given; correct one of them"
        )
    return width // heads


def _llama(where: str, data: Mapping[str, Any]) -> ModelConfig:
    kind = data["model_type"]
    width, heads = _int(where, data, "hidden_size"), _int(where, data, "num_attention_heads")
    vocabulary = _int(where, data, "vocab_size")
    tied = _flag(where, data, "tie_word_embeddings", default=False)
    head_dim = data.get("head_dim")
    for key in ("attention_bias", "mlp_bias"):
        if _flag(where, data, key, default=False):
            raise ParameterError(f"{where}: '{key}' is true, which no reader here knows; use this package's own schema")
    decoder = Stack(
        layers=_int(where, data, "num_hidden_layers"),
        width=width,
        heads=heads,
        kv_heads=_int(where, data, "num_key_value_heads", heads),
        head_dim=_shared_width(where, width, heads) if head_dim is None else _int(where, data, "head_dim"),
        mlp_width=_int(where, data, "intermediate_size"),
        vocabulary=vocabulary,
        outputs=0 if tied else vocabulary,
        max_length=_int(where, data, "max_position_embeddings"),
        qkv_bias=kind == "qwen2",
        head_norms=kind == "qwen3",
    )
    return ModelConfig(name=where, source=where, decoder=decoder, shipped=_one_dtype(data))


def _one_dtype(data: Mapping[str, Any]) -> Shipped:
    dtype = _dtype(data)
    return Shipped(weights=dtype, norms=dtype, cache=dtype)


def _gpt2(where: str, data: Mapping[str, Any]) -> ModelConfig:
    width, heads = _int(where, data, "n_embd"), _int(where, data, "n_head")
    decoder = Stack(
        layers=_int(where, data, "n_layer"),
        width=width,
        heads=heads,
        kv_heads=heads,
        head_dim=_shared_width(where, width, heads),
        mlp_width=_int(where, data, "n_inner", 4 * width),
        vocabulary=_int(where, data, "vocab_size"),
        max_length=_int(where, data, "n_positions"),
        gated=False,
        fused_qkv=True,
        bias=True,
        norm="layer",
        positions="learned",
    )
    return ModelConfig(name=where, source=where, decoder=decoder, shipped=_one_dtype(data))


_T5_ACTIVATIONS: Mapping[str, Activation] = {
    "relu": "fused", "gelu": "fused", "silu": "fused", "swish": "fused", "gelu_new": "gelu_new",
}  # fmt: skip


def _t5_activation(where: str, data: Mapping[str, Any]) -> tuple[bool, Activation]:
    """Whether T5's MLP is gated, and by what: ``relu``, or ``gated-gelu``, which stands for ``gelu_new``."""
    value = data.get("feed_forward_proj", "relu")
    gate, _, name = value.rpartition("-") if isinstance(value, str) else ("", "", "")
    if gate not in ("", "gated") or name not in _T5_ACTIVATIONS:
        known = ", ".join(_T5_ACTIVATIONS)
        raise ParameterError(
            f"{where}: 'feed_forward_proj' is {value!r}; expected one of {known}, alone or after 'gated-'"
        )
    return bool(gate), "gelu_new" if value == "gated-gelu" else _T5_ACTIVATIONS[name]


def _t5(where: str, data: Mapping[str, Any]) -> ModelConfig:
    heads = _int(where, data, "num_heads")
    gated, activation = _t5_activation(where, data)
    encoder = Stack(
        layers=_int(where, data, "num_layers"),
        width=_int(where, data, "d_model"),
        heads=heads,
        kv_heads=heads,
        head_dim=_int(where, data, "d_kv"),
        mlp_width=_int(where, data, "d_ff"),
        vocabulary=_int(where, data, "vocab_size"),
        max_length=_int(where, data, "n_positions", 512),
        gated=gated,
        activation=activation,
        positions="relative",
        relative_buckets=_int(where, data, "relative_attention_num_buckets", 32),
        norm="t5",
        attention="explicit",
    )
    dtype = _dtype(data)
    kept = "float32" if dtype == "float16" else ""
    shipped = Shipped(weights=dtype, norms=dtype, cache=dtype, mlp_out=kept)
    return ModelConfig(name=where, source=where, encoder=encoder, shipped=shipped, landed="planned")


def _dia_stack(where: str, data: Mapping[str, Any], **more: Any) -> Stack:
    heads = _int(where, data, "num_attention_heads")
    return Stack(
        layers=_int(where, data, "num_hidden_layers"),
        width=_int(where, data, "hidden_size"),
        heads=heads,
        kv_heads=_int(where, data, "num_key_value_heads", heads),
        head_dim=_int(where, data, "head_dim", 128),
        mlp_width=_int(where, data, "intermediate_size"),
        vocabulary=_int(where, data, "vocab_size"),
        max_length=_int(where, data, "max_position_embeddings"),
        fused_gate=True,
        **more,
    )


_DIA_DELAYS = (0, 8, 9, 10, 11, 12, 13, 14, 15)
"""transformers' default."""


def _check_delays(where: str, data: Mapping[str, Any], channels: int) -> None:
    """Refuse a delay pattern that is no list of delays, or not one per channel."""
    delays = data.get("delay_pattern")
    delays = _DIA_DELAYS if delays is None else delays
    if not isinstance(delays, list | tuple) or any(type(delay) is not int or delay < 0 for delay in delays):
        raise ParameterError(f"{where}: 'delay_pattern' is {delays!r}; expected a list of integers, 0 or more")
    if len(delays) != channels:
        raise ParameterError(
            f"{where}: 'delay_pattern' has {len(delays)} delays, 'num_channels' of decoder_config is {channels}; "
            "give one delay per channel"
        )


def _dia(where: str, data: Mapping[str, Any]) -> ModelConfig:
    text, audio = _part(where, data, "encoder_config"), _part(where, data, "decoder_config")
    encoder = _dia_stack(f"{where}: encoder_config", text)
    inside = f"{where}: decoder_config"
    channels = _int(inside, audio, "num_channels", 9)
    _check_delays(where, data, channels)
    decoder = _dia_stack(
        inside,
        audio,
        tables=channels,
        outputs=channels * _int(inside, audio, "vocab_size"),
        cross_heads=_int(inside, audio, "cross_num_attention_heads", 16),
        cross_kv_heads=_int(inside, audio, "cross_num_key_value_heads", 16),
        cross_head_dim=_int(inside, audio, "cross_head_dim", 128),
        cross_width=_int(inside, audio, "cross_hidden_size", 1024),
    )
    return ModelConfig(
        name=where,
        source=where,
        encoder=encoder,
        decoder=decoder,
        encoder_length=encoder.max_length,
        guidance_rows=2,
        shipped=_one_dtype(data),
        landed="planned",
    )


READERS: Mapping[str, Callable[[str, Mapping[str, Any]], ModelConfig]] = {
    "dia": _dia,
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _llama,
    "qwen2": _llama,
    "qwen3": _llama,
    "t5": _t5,
}
"""Readers by ``model_type``: ``read(name of the file, its content)``."""
