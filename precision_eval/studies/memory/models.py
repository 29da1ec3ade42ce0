"""The models that a plan is made for, built where tensors are fake: a case, or a causal language model of a config.

A plan is of one call. Caches are buffers, so that a fix stores them as it stores weights. A Hugging Face
``config.json`` is built with transformers' own classes; weights and caches have the config's dtype (``dtype``, older
``torch_dtype``).
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch._guards import detect_fake_mode

from precision_eval.cases.base import BuiltCase, Case
from precision_eval.cases.own import built
from precision_eval.cases.systems import CASES, case_by_id
from precision_eval.core.errors import ParameterError, UnsupportedError, check_known
from precision_eval.core.files import read_json
from precision_eval.core.formats import short
from precision_eval.core.targets import first_line, is_target, loaded

DTYPES = ("as_shipped", "float16", "bfloat16", "float32")
MOST_LAYERS = 1000
_CACHE_NAME = re.compile(
    r"(?:.*_)?(?:k|keys?|v|values?)(?:_?(?:cache|states?))?|(?:.*_)?(?:kv)?_?cache|.*cache_(?:k|keys?|v|values?)"
)


@dataclass(frozen=True, kw_only=True)
class PlannedCall:
    dtype: str = "as_shipped"
    kv_dtype: str = "as_shipped"
    batch: int = 1
    length: int = 2048
    tokens: int = 1

    def __post_init__(self) -> None:
        for name, dtype in (("dtype", self.dtype), ("kv-dtype", self.kv_dtype)):
            check_known(name, dtype, DTYPES)
        for name in ("batch", "length", "tokens"):
            if getattr(self, name) < 1:
                raise ParameterError(f"{name} is {getattr(self, name)}; expected at least 1")


@dataclass(frozen=True, kw_only=True)
class PlannedModel:
    """A model that a plan can be made for.

    ``make(call, layers)`` builds it with so many layers; ``longest`` is the number of learned positions, None where the
    length has no end. One that is `as_built` has one size.
    """

    name: str
    source: str
    layers: int
    default_length: int
    make: Callable[[PlannedCall, int], BuiltCase]
    longest: int | None = None
    as_built: bool = False

    def check(self, call: PlannedCall) -> None:
        if self.as_built and (call.length, call.batch, call.tokens) != (self.default_length, 1, 1):
            raise ParameterError(
                f"{self.name} is planned with its own inputs; leave out --length and the settings batch and tokens"
            )
        if self.longest is not None and call.length > self.longest:
            raise ParameterError(
                f"length {call.length} is beyond the {self.longest} learned positions of {self.name}; "
                f"ask for {self.longest} or less"
            )
        if call.tokens > call.length:
            raise ParameterError(f"tokens {call.tokens} do not fit length {call.length}; ask for fewer")

    def build(self, call: PlannedCall, layers: int) -> BuiltCase:
        case = self.make(call, min(layers, self.layers))
        if call.dtype != "as_shipped":
            for parameter in case.model.parameters():
                parameter.data = parameter.data.to(getattr(torch, call.dtype))
        if call.kv_dtype != "as_shipped":
            for name, buffer in case.model.named_buffers():
                if is_cache(name):
                    buffer.data = buffer.data.to(getattr(torch, call.kv_dtype))
        return case


def is_cache(name: str) -> bool:
    """Say whether a buffer holds keys or values, from the last part of its name."""
    return _CACHE_NAME.fullmatch(name.rpartition(".")[2].lower()) is not None


def planned_model(name: str, *, length: int | None = None, size: str | None = None) -> PlannedModel:
    """Build a user's case, weights included, or describe a shipped case or the model of a ``config.json``.

    A user's factory that takes a `length` is called with it.
    """
    if size is not None and name not in (case.id for case in CASES):
        raise ParameterError(f"size is '{size}', and {name} has none; only a shipped case has sizes")
    if name.endswith(".json"):
        return _model_of_config(Path(name))
    if is_target(name) and length is not None:
        return _model_of_case(_case_of_length(name, length), length)
    if is_target(name):
        return _model_of_case(case_by_id(name))
    if name in (case.id for case in CASES):
        return _model_of_shipped(case_by_id(name), size)
    raise ParameterError(f"no model '{name}'; give FILE.py:FACTORY, a case's id, or a Hugging Face config.json")


def _case_of_length(target: str, length: int) -> Case:
    factory = loaded(target)
    if not callable(factory) or "length" not in inspect.signature(factory).parameters:
        name = target.rpartition(":")[2]
        raise ParameterError(
            f"{target} takes no length; write `def {name}(length=...)` and build the cache and inputs by it, or leave "
            "out --length"
        )

    def of_length() -> Any:
        return factory(length=length)

    of_length.__name__ = target
    return replace(case_by_id(target), make=lambda size, **place: built(of_length, size, **place))


def _model_of_case(case: Case, length: int = 1) -> PlannedModel:
    """Plan a case with the inputs that it has; its real tensors are exchanged for some without memory."""
    case_built = case.build(case.default_sizes[0], device="cpu", seed=0)

    @cache
    def faked() -> BuiltCase:
        mode: Any = detect_fake_mode()
        for module in case_built.model.modules():
            for tensors in (module.named_parameters(recurse=False), module.named_buffers(recurse=False)):
                for name, tensor in list(tensors):
                    setattr(module, name, mode.from_tensor(tensor))  # a shared tensor stays shared
        return BuiltCase(case_built.model, tuple(mode.from_tensor(tensor) for tensor in case_built.inputs))

    return PlannedModel(
        name=case.id, source=case.source, layers=1, default_length=length, as_built=True,
        make=lambda call, layers: faked(),
    )  # fmt: skip


def _model_of_shipped(case: Case, size: str | None) -> PlannedModel:
    """Plan a shipped case at any size: its weights are drawn on tensors without memory."""
    chosen = size or case.default_sizes[0]
    check_known(f"size of {case.id}:", chosen, case.sizes)
    return PlannedModel(
        name=f"{case.id} {chosen}", source=case.source, layers=1, default_length=1, as_built=True,
        make=lambda call, layers: case.build(chosen, device="cpu", seed=0),
    )  # fmt: skip


class _DecoderCall(nn.Module):
    """One call of a causal language model on static caches that are filled but for this call's tokens."""

    def __init__(self, model: Any, cache: Any, *, position: int) -> None:
        super().__init__()
        self.model = model
        self.position = position
        self._cache = cache
        names = inspect.signature(model.forward).parameters
        self._name = "cache" if "cache" in names else "past_key_values"  # as transformers 5.24 and those before call it
        for index, layer in enumerate(cache.layers):
            self.register_buffer(f"{index}_key", layer.keys, persistent=False)
            self.register_buffer(f"{index}_value", layer.values, persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        for index, layer in enumerate(self._cache.layers):
            layer.keys, layer.values = getattr(self, f"{index}_key"), getattr(self, f"{index}_value")
            layer.cumulative_length.fill_(self.position)
        logits: torch.Tensor = self.model(input_ids=tokens, use_cache=True, **{self._name: self._cache}).logits
        return logits


def _model_of_config(path: Path) -> PlannedModel:
    """Describe the model of a config; errors name the file and what transformers says of it."""
    data = read_json(path)
    try:
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL
    except ImportError as error:
        raise UnsupportedError(
            f"{path} is planned with transformers' own classes, and transformers is not installed: "
            "pip install transformers"
        ) from error
    kind = data.get("model_type") if isinstance(data, dict) else None
    if kind not in CAUSAL:
        raise ParameterError(
            f"{path}: model_type is {kind!r}; expected the config of a causal language model of transformers. "
            "Plan another model by a FACTORY"
        )
    config = _config(path, data, None)
    layers, _ = config.num_hidden_layers, _dtype_of(config)
    if not isinstance(layers, int) or not 1 <= layers <= MOST_LAYERS:
        raise ParameterError(f"{path}: num_hidden_layers is {layers!r}; expected 1 to {MOST_LAYERS}")
    return PlannedModel(
        name=path.name,
        source=path.name,
        layers=layers,
        default_length=config.max_position_embeddings,
        longest=config.max_position_embeddings if kind in ("gpt2", "opt", "gpt_neo") else None,
        make=lambda call, depth: _decoder(_config(path, data, depth), call),
    )


def _config(path: Path, data: Mapping[str, Any], layers: int | None) -> Any:
    """Build transformers' configuration, with another number of layers where one is given."""
    from transformers import AutoConfig

    values = copy.deepcopy({key: value for key, value in data.items() if key != "model_type"})
    try:
        config = AutoConfig.for_model(data["model_type"], **values)
    except Exception as error:  # configs are checked by many classes, each with its own errors
        raise ParameterError(f"{path}: transformers refuses it: {first_line(error)}; correct the file") from error
    if layers is not None:
        config.num_hidden_layers = layers
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:layers]
    return config


def _dtype_of(config: Any) -> torch.dtype:
    name = short(str(getattr(config, "dtype", None) or "float32"))
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ParameterError(f"dtype of the config is {name!r}; expected a floating format such as float16")
    return dtype


def _decoder(config: Any, call: PlannedCall) -> BuiltCase:
    """Build one call of the model in the config's dtype, without drawing its weights."""
    from transformers import AutoModelForCausalLM
    from transformers.cache_utils import StaticCache
    from transformers.initialization import no_init_weights

    dtype = _dtype_of(config)
    with no_init_weights():
        model = cast(Any, AutoModelForCausalLM).from_config(config).eval()
    model.tie_weights()  # skipped with drawing the weights
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    caches = StaticCache(config=config, max_cache_len=call.length)
    for layer in caches.layers:
        states = torch.zeros((call.batch, kv_heads, 1, width), dtype=dtype)
        cast(Any, layer).lazy_initialization(states, states)
    case = _DecoderCall(model, caches, position=call.length - call.tokens)
    return BuiltCase(case, (torch.zeros((call.batch, call.tokens), dtype=torch.long),))
