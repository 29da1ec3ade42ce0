"""The models that a plan is made for: real classes at their published sizes, built where tensors are fake.

A plan asks for one *phase* at a time: an encoder's pass, or one call of a decoder on its caches. Caches are buffers, so
that a fix stores them as it stores weights. Building is cheap, as nothing is drawn or loaded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_eval.cases.base import BuiltCase
from precision_eval.cases.systems import cogvideo_t5, dia, metavoice
from precision_eval.core.errors import ParameterError, unknown_name

if TYPE_CHECKING:
    from torch import nn

DTYPES = ("as_shipped", "float16", "bfloat16", "float32")
MOST_LAYERS = 1000


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
            if dtype not in DTYPES:
                raise unknown_name(name, dtype, DTYPES)
        for name in ("batch", "length", "tokens"):
            if getattr(self, name) < 1:
                raise ParameterError(f"{name} is {getattr(self, name)}; expected at least 1")


Phases = dict[str, Callable[[], BuiltCase]]


@dataclass(frozen=True, kw_only=True)
class PlannedModel:
    """A model that a plan can be made for.

    ``phases(call, layers)`` gives the builders of its phases with that many layers in each stack; ``longest`` is the
    number of learned positions, None where the length has no end.
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

    def check(self, call: PlannedCall) -> None:
        """Refuse a call that this model cannot make."""
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
        import torch

        for name, parameter in model.named_parameters():
            wide = call.dtype == "float16" and self.keeps_wide and self.keeps_wide in name.split(".")
            if call.dtype != "as_shipped":
                parameter.data = parameter.data.to(torch.float32 if wide else getattr(torch, call.dtype))
        for name, buffer in model.named_buffers():
            if call.kv_dtype != "as_shipped" and is_cache(name):
                buffer.data = buffer.data.to(getattr(torch, call.kv_dtype))


def is_cache(name: str) -> bool:
    """Say whether a buffer holds keys or values, from its name."""
    return name.endswith(("key", "value"))


def _repeated(case: BuiltCase, rows: int, batch: int) -> BuiltCase:
    """Give every input, cache and mask that has one entry per row that many more rows."""
    import torch

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
        import torch

        case = metavoice.metavoice_case(
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
    state = dia.D4790DD if call.dtype == "as_shipped" else replace(dia.D4790DD, weights=call.dtype, compute=call.dtype)
    encoder = replace(dia.ENCODER_SIZES["full"], layers=layers["encode"])
    decoder = replace(dia.DECODER_SIZES["full"], layers=layers["decode"], slots=call.length, filled=call.length)
    return {
        "encode": lambda: dia.encode_case(encoder, device="cpu", seed=0, state=state),
        "decode": lambda: dia.decode_case(decoder, device="cpu", seed=0, state=state),
    }


def _t5(call: PlannedCall, layers: Mapping[str, int]) -> Phases:
    size = replace(cogvideo_t5.SIZES["full"], layers=layers["encode"], tokens=call.length, prompt=1)

    def encode() -> BuiltCase:
        import torch

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
    """Look a model up by name, or read a Hugging Face ``config.json``."""
    if name.endswith(".json") or Path(name).is_file():
        return _from_config(Path(name))
    for model in MODELS:
        if model.name == name:
            return model
    raise unknown_name("model", name, [*(model.name for model in MODELS), "CONFIG.json"])


def _from_config(path: Path) -> PlannedModel:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ParameterError(f"{path} cannot be read: {error.strerror}; give a JSON file or a model's name") from error
    except ValueError as error:
        raise ParameterError(f"{path} is no JSON: {error}; mend it, or give a model's name") from error
    if not isinstance(data, dict):
        raise ParameterError(f"{path} holds {type(data).__name__}; expected an object")
    if not isinstance(data.get("model_type"), str):
        raise ParameterError(
            f"{path}: model_type is {data.get('model_type')!r}; expected the config.json of a Hugging Face model, "
            "which names its type"
        )
    from precision_eval.studies.memory.hugging_face import model_of_config

    return model_of_config(path, data)
