"""The models that a plan is made for: real classes at their published sizes, built where tensors are fake.

A plan asks for one *phase* at a time: an encoder's pass, or one call of a decoder on its caches. Caches are buffers, so
that a fix stores them as it stores weights. Building is cheap, as nothing is drawn or loaded. A Hugging Face
``config.json`` is built with transformers' own classes; weights and caches have the config's dtype (``dtype``, older
``torch_dtype``), and T5 in float16 keeps its output projection ``wo`` in float32, as ``from_pretrained`` does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch._guards import detect_fake_mode

from precision_eval.cases.base import BuiltCase, Case
from precision_eval.cases.systems import CASES, case_by_id, cogvideo_t5, dia, metavoice
from precision_eval.cases.systems.dia_model import decode_case, encode_case
from precision_eval.cases.systems.metavoice_model import metavoice_case
from precision_eval.core.errors import ParameterError, UnsupportedError, check_known, entry_of
from precision_eval.core.files import read_json
from precision_eval.core.formats import short
from precision_eval.core.targets import first_line, is_target
from precision_eval.fixes.narrow import cache_part

DTYPES = ("as_shipped", "float16", "bfloat16", "float32")
MOST_LAYERS = 1000
_KEPT_WIDE = "wo"


@dataclass(frozen=True, kw_only=True)
class PlannedCall:
    """The call that is planned: dtypes of weights and caches, and how much is in it."""

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


Phases = dict[str, Callable[[], BuiltCase]]


@dataclass(frozen=True, kw_only=True)
class PlannedModel:
    """A model that a plan can be made for.

    ``phases(call, layers)`` gives the builders of its phases with that many layers in each stack; ``longest`` is the
    number of learned positions, None where the length has no end. One that is `as_built` has one size.
    """

    name: str
    source: str
    layers: Mapping[str, int]
    default_length: int
    phases: Callable[[PlannedCall, Mapping[str, int]], Phases]
    longest: int | None = None
    guidance_rows: int = 1
    keeps_wide: str = ""
    notes: tuple[str, ...] = ()
    decodes_many: bool = True
    as_built: bool = False

    def check(self, call: PlannedCall) -> None:
        """Refuse a call that this model cannot make."""
        if self.as_built and (call.length, call.batch, call.tokens) != (1, 1, 1):
            raise ParameterError(
                f"{self.name} is planned with its own inputs; leave out --length, --batch and --tokens"
            )
        if self.longest is not None and call.length > self.longest:
            raise ParameterError(
                f"length {call.length} is beyond the {self.longest} learned positions of {self.name}; "
                f"ask for {self.longest} or less"
            )
        if "decode" in self.layers and call.tokens > call.length:
            raise ParameterError(f"tokens {call.tokens} do not fit length {call.length}; ask for fewer")
        if call.tokens > 1 and not self.decodes_many:
            raise ParameterError(f"tokens is {call.tokens}; {self.name} is planned one token a call: leave it at 1")

    def build(self, phase: str, call: PlannedCall, layers: int) -> BuiltCase:
        """Build a phase with so many layers, in the dtypes and for the batch that are asked for."""
        depth = {name: min(layers, count) for name, count in self.layers.items()}
        case = self.phases(call, depth)[phase]()
        self._store(case.model, call)
        return _repeated(case, self.guidance_rows, call.batch)

    def _store(self, model: nn.Module, call: PlannedCall) -> None:
        for name, parameter in model.named_parameters():
            wide = call.dtype == "float16" and self.keeps_wide and self.keeps_wide in name.split(".")
            if call.dtype != "as_shipped":
                parameter.data = parameter.data.to(torch.float32 if wide else getattr(torch, call.dtype))
        for name, buffer in model.named_buffers():
            if call.kv_dtype != "as_shipped" and is_cache(name):
                buffer.data = buffer.data.to(getattr(torch, call.kv_dtype))


def is_cache(name: str) -> bool:
    """Say whether a buffer holds keys or values, as the fixes of caches do: from the last part of its name."""
    return cache_part(name.rpartition(".")[2]) is not None


def _repeated(case: BuiltCase, rows: int, batch: int) -> BuiltCase:
    """Give every input, cache and mask that has one entry per row that many more rows."""

    def more(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.repeat(batch, *[1] * (tensor.ndim - 1))

    def per_row(tensor: torch.Tensor, dimensions: int) -> bool:
        return tensor.ndim >= dimensions and tensor.shape[0] == rows

    for _, buffer in case.model.named_buffers() if batch > 1 else ():
        if per_row(buffer, 3):  # caches (B, H, S, D), masks (B, 1, 1) or (B, 1, 1, S)
            buffer.data = more(buffer)
    inputs = tuple(more(x) if batch > 1 and per_row(x, 2) else x for x in case.inputs)
    return BuiltCase(case.model, inputs)


def _metavoice(call: PlannedCall, layers: Mapping[str, int]) -> Phases:
    full = metavoice.SIZES["full"]
    size = replace(full, layers=layers["decode"], slots=call.length, filled=call.length, prompt=call.tokens)
    weights = "bfloat16" if call.dtype == "as_shipped" else call.dtype
    speaker = metavoice.CACHE_DTYPE if call.kv_dtype == "as_shipped" else call.kv_dtype
    speaker = speaker if call.dtype == "as_shipped" else weights

    def decode() -> BuiltCase:
        case = metavoice_case(
            size,
            device="cpu",
            seed=0,
            prefill=call.tokens > 1,
            indexed=True,
            weight_dtype=weights,
            speaker_dtype=speaker,
        )
        table: Any = case.model.position_embedding
        if full.slots > size.slots:  # the case has as many positions as slots, the published model always has all
            wide = torch.zeros((full.slots, size.dim), dtype=table.weight.dtype)
            table.weight = torch.nn.Parameter(wide, requires_grad=False)
        return case

    return {"decode": decode}


def _dia(call: PlannedCall, layers: Mapping[str, int]) -> Phases:
    state = dia.D4790DD
    if call.dtype != "as_shipped":
        state = replace(state, weights=call.dtype, compute=call.dtype)
    encoder = replace(dia.ENCODER_SIZES["full"], layers=layers["encode"])
    decoder = replace(dia.DECODER_SIZES["full"], layers=layers["decode"], slots=call.length, filled=call.length)
    return {
        "encode": lambda: encode_case(encoder, device="cpu", seed=0, state=state),
        "decode": lambda: decode_case(decoder, device="cpu", seed=0, state=state),
    }


def _t5(call: PlannedCall, layers: Mapping[str, int]) -> Phases:
    size = replace(cogvideo_t5.SIZES["full"], layers=layers["encode"], tokens=call.length, prompt=1)

    def encode() -> BuiltCase:
        from precision_eval.cases.systems.cogvideo_t5_model import T5Encoder

        model, dtype = T5Encoder(size, fused=False), getattr(torch, cogvideo_t5.DTYPE)
        weights = {
            name: torch.zeros(p.shape, dtype=torch.float32 if cogvideo_t5.KEPT_WIDE in name.split(".") else dtype)
            for name, p in model.named_parameters()
        }
        model.load_state_dict(weights, assign=True)
        return BuiltCase(model.eval().requires_grad_(False), (torch.zeros((1, call.length), dtype=torch.long),))

    return {"encode": encode}


MODELS: tuple[PlannedModel, ...] = (
    PlannedModel(
        name="metavoice-1b",
        source="metavoiceio/metavoice-src, fam/llm/fast_model.py and fast_inference_utils.py (first stage)",
        layers={"decode": metavoice.SIZES["full"].layers},
        default_length=metavoice.SIZES["full"].slots,
        longest=metavoice.SIZES["full"].slots,
        phases=_metavoice,
        guidance_rows=metavoice.GUIDANCE_ROWS,
        notes=(
            "not in this plan: the second stage, the speaker encoder and the codec, whose multi-band diffusion takes "
            "some 5 GB (metavoice-src #66); and fam/llm/sample.py loads each checkpoint onto the device beside its "
            "model",
        ),
    ),
    PlannedModel(
        name="dia-1.6b",
        source="nari-labs/dia, dia/config.py and dia/layers.py at d4790dd (PR #88)",
        layers={"encode": dia.ENCODER_SIZES["full"].layers, "decode": dia.DECODER_SIZES["full"].layers},
        default_length=dia.DECODER_SIZES["full"].slots,
        phases=_dia,
        guidance_rows=dia.GUIDANCE_ROWS,
        decodes_many=False,
    ),
    PlannedModel(
        name="t5-xxl",
        source="google/t5-v1_1-xxl, config.json: the encoder with its own norm, as CogVideoX uses it; apex's raises",
        layers={"encode": cogvideo_t5.SIZES["full"].layers},
        default_length=512,
        phases=_t5,
        keeps_wide=cogvideo_t5.KEPT_WIDE,
    ),
)


def planned_model(name: str) -> PlannedModel:
    """Look a model up by name, read a Hugging Face ``config.json``, or build a case, its weights included."""
    if is_target(name) or name in (case.id for case in CASES):
        return _of_case(case_by_id(name))
    if name.endswith(".json") or Path(name).is_file():
        return _from_config(Path(name))
    return entry_of("model", name, MODELS, by="name", also=("CONFIG.json", "a case's id"))


def _of_case(case: Case) -> PlannedModel:
    """Plan a case with the inputs that it has; its real tensors are exchanged for some without memory."""
    built = case.build(case.default_sizes[0], device="cpu", seed=0)

    @cache
    def faked() -> BuiltCase:
        mode: Any = detect_fake_mode()
        for module in built.model.modules():
            own = (module.named_parameters(recurse=False), module.named_buffers(recurse=False))
            for name, tensor in [pair for kind in own for pair in kind]:
                setattr(module, name, mode.from_tensor(tensor))  # shared ones stay so
        return BuiltCase(built.model, tuple(mode.from_tensor(tensor) for tensor in built.inputs))

    return PlannedModel(
        name=case.id, source=case.source, layers={"call": 1}, default_length=1, as_built=True,
        phases=lambda call, depth: {"call": faked},
    )  # fmt: skip


def _from_config(path: Path) -> PlannedModel:
    data = read_json(path)
    if not isinstance(data, dict):
        raise ParameterError(f"{path} holds {type(data).__name__}; expected an object")
    if not isinstance(data.get("model_type"), str):
        raise ParameterError(
            f"{path}: model_type is {data.get('model_type')!r}; expected the config.json of a Hugging Face model, "
            "which names its type"
        )
    return model_of_config(path, data)


class _DecoderCall(nn.Module):
    """One call of a causal language model on static caches that are filled but for this call's tokens."""

    def __init__(self, model: Any, cache: Any, *, position: int) -> None:
        super().__init__()
        self.model = model
        self.position = position
        self._cache = cache
        for index, layer in enumerate(cache.layers):
            self.register_buffer(f"{index}_key", layer.keys, persistent=False)
            self.register_buffer(f"{index}_value", layer.values, persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        for index, layer in enumerate(self._cache.layers):
            layer.keys, layer.values = getattr(self, f"{index}_key"), getattr(self, f"{index}_value")
            layer.cumulative_length.fill_(self.position)
        logits: torch.Tensor = self.model(input_ids=tokens, past_key_values=self._cache, use_cache=True).logits
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
    if kind not in CAUSAL:
        raise ParameterError(
            f"{path}: model_type {kind!r} is no causal language model of transformers {transformers.__version__}; "
            "give the config of one, or plan your own factory"
        )
    config = _config(path, data, None)
    layers = _layers_of(path, config)
    _dtype(config)
    shared: dict[str, Any] = {"name": path.name, "source": path.name, "layers": layers}
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
        raise ParameterError(f"{path}: transformers refuses it: {first_line(error)}; mend it") from error
    for phase, count in (layers or {}).items():
        part = _part(config, phase)
        setattr(part, _depth_name(config, phase), count)
        if getattr(part, "layer_types", None):
            part.layer_types = part.layer_types[:count]
    return config


def _part(config: Any, phase: str) -> Any:
    return getattr(config, f"{phase}r_config", config)  # encode: encoder_config


def _depth_name(config: Any, phase: str) -> str:
    return "num_hidden_layers"


def _layers_of(path: Path, config: Any) -> dict[str, int]:
    names = {"decode": _depth_name(config, "decode")}
    layers: dict[str, Any] = {phase: getattr(_part(config, phase), names[phase], None) for phase in names}
    for phase, count in layers.items():
        if not isinstance(count, int) or not 1 <= count <= MOST_LAYERS:
            raise ParameterError(f"{path}: {names[phase]} to {phase} is {count!r}; expected 1 to {MOST_LAYERS}")
    return layers


def _dtype(config: Any) -> torch.dtype:
    name = short(str(getattr(config, "dtype", None) or "float32"))
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
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


def _filled_cache(config: Any, length: int, rows: int, dtype: torch.dtype, *, cross: bool = False) -> Any:
    from transformers.cache_utils import StaticCache

    cache = StaticCache(config=config, max_cache_len=length)
    prefix = "cross_" if cross else ""
    heads = getattr(config, f"{prefix}num_attention_heads")
    kept = getattr(config, f"{prefix}num_key_value_heads", None) or heads
    width = getattr(config, f"{prefix}head_dim", None) or config.hidden_size // heads
    for layer in cache.layers:
        states = torch.zeros((rows, kept, 1, width), dtype=dtype)
        cast(Any, layer).lazy_initialization(states, states)
    return cache


def _decoder(config: Any, call: PlannedCall) -> BuiltCase:
    from transformers import AutoModelForCausalLM

    model = _made(AutoModelForCausalLM.from_config, config)
    cache = _filled_cache(config, call.length, 1, _dtype(config))
    case = _DecoderCall(model, cache, position=call.length - call.tokens)
    return BuiltCase(case, (torch.zeros((1, call.tokens), dtype=torch.long),))
