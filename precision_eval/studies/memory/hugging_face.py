"""Hugging Face ``config.json`` files as planned models: transformers' own classes, built where tensors are fake.

A decoder runs on static caches, which are buffers of the module around it. Weights and caches have the config's dtype
(``dtype``, older ``torch_dtype``); T5 in float16 keeps its output projection ``wo`` in float32, as ``from_pretrained``
does.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from precision_eval.cases.base import BuiltCase
from precision_eval.cases.systems.dia import GUIDANCE_ROWS
from precision_eval.core.errors import ParameterError, UnsupportedError
from precision_eval.studies.memory.models import MOST_LAYERS, Phases, PlannedCall, PlannedModel

_KEPT_WIDE = "wo"


class _EncoderCall(nn.Module):
    """One pass of an encoder."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the last hidden state, (B, L, W)."""
        output: torch.Tensor = self.encoder(input_ids=tokens)[0]
        return output


class _DecoderCall(nn.Module):
    """One call of a causal language model on static caches that are filled but for this call's tokens."""

    def __init__(self, model: Any, cache: Any, *, position: int, text: torch.Tensor | None = None) -> None:
        super().__init__()
        self.model = model
        self.position = position
        self._cache = cache
        self.register_buffer("text", text, persistent=False)
        for name, layer in self._layers():
            self.register_buffer(f"{name}_key", layer.keys, persistent=False)
            self.register_buffer(f"{name}_value", layer.values, persistent=False)

    def _layers(self) -> list[tuple[str, Any]]:
        parts = {"self": getattr(self._cache, "self_attention_cache", self._cache)}
        if self.text is not None:
            parts["cross"] = self._cache.cross_attention_cache
        return [(f"{name}_{index}", layer) for name, part in parts.items() for index, layer in enumerate(part.layers)]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        for name, layer in self._layers():
            layer.keys, layer.values = getattr(self, f"{name}_key"), getattr(self, f"{name}_value")
            if name.startswith("self"):
                layer.cumulative_length.fill_(self.position)
        given: dict[str, Any] = {"input_ids": tokens}
        if self.text is not None:
            given = {"decoder_input_ids": tokens, "encoder_outputs": (self.text,)}
        logits: torch.Tensor = self.model(**given, past_key_values=self._cache, use_cache=True).logits
        return logits


def model_of_config(path: Path, data: Mapping[str, Any]) -> PlannedModel:
    """Describe the model of a config; errors name the file and what transformers says of it."""
    try:
        import transformers
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL
    except ImportError as error:
        raise UnsupportedError(
            f"{path} is planned with transformers' own classes, and transformers is not installed: "
            "pip install 'precision-eval[zoo]'"
        ) from error
    kind = data["model_type"]
    if kind not in ("t5", "dia") and kind not in CAUSAL:
        raise ParameterError(
            f"{path}: model_type {kind!r} is neither t5, dia nor a causal language model of transformers "
            f"{transformers.__version__}; give the config of one"
        )
    config = _config(path, data, None)
    layers = _layers_of(path, config)
    _dtype(config)
    shared: dict[str, Any] = {"name": path.name, "source": path.name, "layers": layers}
    if kind == "t5":
        return PlannedModel(
            **shared,
            default_length=getattr(config, "n_positions", None) or 512,
            phases=lambda call, depth: {"encode": lambda: _encoder(_config(path, data, depth), call)},
            keeps_wide=_KEPT_WIDE,
        )
    if kind == "dia":
        return PlannedModel(
            **shared,
            default_length=config.decoder_config.max_position_embeddings,
            phases=lambda call, depth: _dia_phases(_config(path, data, depth), call),
            guidance_rows=GUIDANCE_ROWS,
            decodes_many=False,
        )
    longest = config.max_position_embeddings
    return PlannedModel(
        **shared,
        default_length=longest,
        longest=longest if kind in ("gpt2", "opt", "gpt_neo") else None,
        phases=lambda call, depth: {"decode": lambda: _decoder(_config(path, data, depth), call)},
    )


def _config(path: Path, data: Mapping[str, Any], layers: Mapping[str, int] | None) -> Any:
    """Build transformers' configuration, with other numbers of layers where they are given."""
    from transformers import AutoConfig

    values = copy.deepcopy({key: value for key, value in data.items() if key != "model_type"})
    try:
        config = AutoConfig.for_model(data["model_type"], **values)
    except Exception as error:  # configs are checked by many classes, each with its own errors
        raise ParameterError(f"{path}: transformers refuses it: {str(error).splitlines()[0]}; mend it") from error
    for phase, count in (layers or {}).items():
        part = _part(config, phase)
        part.num_hidden_layers = count
        if getattr(part, "layer_types", None):
            part.layer_types = part.layer_types[:count]
    return config


def _part(config: Any, phase: str) -> Any:
    return getattr(config, f"{phase}r_config", config)  # encode: encoder_config


def _layers_of(path: Path, config: Any) -> dict[str, int]:
    kind = config.model_type
    phases = {"t5": ("encode",), "dia": ("encode", "decode")}.get(kind, ("decode",))
    layers = {phase: getattr(_part(config, phase), "num_hidden_layers", None) for phase in phases}
    for phase, count in layers.items():
        if not isinstance(count, int) or not 1 <= count <= MOST_LAYERS:
            raise ParameterError(f"{path}: num_hidden_layers to {phase} is {count!r}; expected 1 to {MOST_LAYERS}")
    return layers


def _dtype(config: Any) -> torch.dtype:
    name = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ParameterError(f"dtype of the config is {name!r}; expected a floating format such as float16")
    return dtype


def _made(cls: Any, config: Any) -> Any:
    """Make a model in the config's dtype; its weights are not drawn."""
    from transformers.initialization import no_init_weights

    with no_init_weights():
        model = cls(config).eval()
    model.tie_weights()  # which goes with drawing the weights
    dtype = _dtype(config)
    for name, parameter in model.named_parameters():
        kept = config.model_type == "t5" and dtype is torch.float16 and _KEPT_WIDE in name.split(".")
        parameter.data = parameter.data.to(torch.float32 if kept else dtype)
    return model


def _encoder(config: Any, call: PlannedCall) -> BuiltCase:
    from transformers import T5EncoderModel

    return BuiltCase(_EncoderCall(_made(T5EncoderModel, config)), (torch.zeros((1, call.length), dtype=torch.long),))


def _filled_cache(config: Any, length: int, rows: int, dtype: torch.dtype, *, cross: bool = False) -> Any:
    from transformers.cache_utils import StaticCache

    cache = StaticCache(config=config, max_cache_len=length)
    prefix = "cross_" if cross else ""
    heads = getattr(config, f"{prefix}num_attention_heads")
    kept = getattr(config, f"{prefix}num_key_value_heads", None) or heads
    width = getattr(config, f"{prefix}head_dim", None) or config.hidden_size // heads
    for layer in cache.layers:
        states = torch.zeros((rows, kept, 1, width), dtype=dtype)
        layer.lazy_initialization(states, states)
    return cache


def _decoder(config: Any, call: PlannedCall) -> BuiltCase:
    from transformers import AutoModelForCausalLM

    model = _made(AutoModelForCausalLM.from_config, config)
    cache = _filled_cache(config, call.length, 1, _dtype(config))
    case = _DecoderCall(model, cache, position=call.length - call.tokens)
    return BuiltCase(case, (torch.zeros((1, call.tokens), dtype=torch.long),))


def _dia_phases(config: Any, call: PlannedCall) -> Phases:
    from transformers import DiaForConditionalGeneration
    from transformers.cache_utils import EncoderDecoderCache

    text, audio = config.encoder_config, config.decoder_config

    def encode() -> BuiltCase:
        whole = _made(DiaForConditionalGeneration, config)
        tokens = torch.zeros((GUIDANCE_ROWS, text.max_position_embeddings), dtype=torch.long)
        return BuiltCase(_EncoderCall(whole.model.encoder), (tokens,))

    def decode() -> BuiltCase:
        whole, dtype = _made(DiaForConditionalGeneration, config), _dtype(config)
        del whole.model.encoder  # planned in its own phase
        cache = EncoderDecoderCache(
            _filled_cache(audio, call.length, GUIDANCE_ROWS, dtype),
            _filled_cache(audio, text.max_position_embeddings, GUIDANCE_ROWS, dtype, cross=True),
        )
        cache.is_updated = dict.fromkeys(range(audio.num_hidden_layers), True)
        hidden = torch.zeros((GUIDANCE_ROWS, text.max_position_embeddings, text.hidden_size), dtype=dtype)
        case = _DecoderCall(whole, cache, position=call.length - 1, text=hidden)
        return BuiltCase(case, (torch.zeros((GUIDANCE_ROWS, 1, audio.num_channels), dtype=torch.long),))

    return {"encode": encode, "decode": decode}
