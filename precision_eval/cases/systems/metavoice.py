"""MetaVoice-1B's first stage, in the two states in which it raised: sizes, cases, and how a case is built.

The architecture and the sizes were read in metavoiceio/metavoice-src, ``fam/llm/fast_model.py``; the sampler in
``fam/llm/fast_inference_utils.py``. One call is one forward pass of both guidance rows (with and without the speaker)
against a static KV cache, and the sampler's probabilities for the last position:

- *decode*: one position, the last of those filled; its slot is written again at every call;
- *prefill*: the prompt's positions from slot 0 on, in an empty cache.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal, cast

from precision_eval.cases.base import SYSTEM_MEASURES, BuiltCase, Case
from precision_eval.cases.systems.metavoice_sizes import (
    CACHE_DTYPE,
    FULL_PARAMETERS,
    GUIDANCE,
    GUIDANCE_ROWS,
    LOGIT_STD,
    NORM_EPS,
    NORM_GAIN_STD,
    POSITION_STD,
    QUERY_STD,
    SIZES,
    SPEAKER_STD,
    TEMPERATURE,
    TOKEN_STD,
    TOP_P,
    MetaVoiceSize,
)

MEASURES = (*SYSTEM_MEASURES, "sampler")


def metavoice_case(
    size: MetaVoiceSize, *, device: str, seed: int, prefill: bool, indexed: bool, weight_dtype: str, speaker_dtype: str
) -> BuiltCase:
    """Build a call of any size; the cases are those of ``SIZES``, a sweep over lengths has its own."""
    import torch

    from precision_eval.cases.systems.metavoice_model import MetaVoice, StaticCache, drawn_weights

    generator = torch.Generator().manual_seed(seed)
    positions = torch.arange(size.prompt) if prefill else torch.tensor([size.filled - 1])
    used = (torch.arange(size.slots) < (0 if prefill else size.filled))[:, None]  # (slots, 1)
    shape = (GUIDANCE_ROWS, size.heads, size.slots, size.head_dim)
    first_slot = None if indexed else (0 if prefill else size.filled - 1)
    caches = []
    for _ in range(size.layers):
        key, value = (
            (torch.randn(shape, generator=generator) * used).to(getattr(torch, CACHE_DTYPE)) for _ in range(2)
        )
        caches.append(StaticCache(key, value, first_slot=first_slot))
    model = MetaVoice(size, caches)
    model.load_state_dict(drawn_weights(model, generator, getattr(torch, weight_dtype)), assign=True)
    tokens = torch.randint(size.vocabulary, (1, len(positions)), generator=generator).repeat(GUIDANCE_ROWS, 1)
    speaker = torch.randn((1, size.speaker_dim), generator=generator).relu()  # the encoder ends in ReLU and a norm
    speaker = (speaker / speaker.norm()).to(getattr(torch, speaker_dtype))
    model = model.eval().requires_grad_(False).to(device)
    return BuiltCase(model, (tokens.to(device), speaker.to(device), positions.to(device)))


def build_metavoice(size: str, *, device: str, seed: int, **state: Any) -> BuiltCase:
    """Build one of ``SIZES``."""
    return metavoice_case(SIZES[size], device=device, seed=seed, **state)


_GPU: dict[str, Any] = {"weight_dtype": "bfloat16", "speaker_dtype": "float16"}
_CPU: dict[str, Any] = {"weight_dtype": "float32", "speaker_dtype": "float32"}
_DRAWN = (TOKEN_STD, POSITION_STD, SPEAKER_STD, QUERY_STD, LOGIT_STD, NORM_GAIN_STD)
_DEFINITION = (
    {name: asdict(size) for name, size in SIZES.items()},
    (CACHE_DTYPE, GUIDANCE, TOP_P, TEMPERATURE, NORM_EPS),
    ("randn", *_DRAWN, "v1"),
)
_ISSUES = "metavoiceio/metavoice-src #106, #108, #128, #172, #187, #203"
_GPU_SOURCE = f"{_ISSUES}; af516be (PR #95): fam/llm/fast_model.py, fam/llm/fast_inference_utils.py"
_CPU_SOURCE = f"{_ISSUES}; fam/llm/inference.py, fam/llm/layers/attn.py"
_GPU_SPLIT = (
    "Weights are bfloat16 whatever the precision asked for; speaker embedding and KV cache are float16. In eager the "
    "speaker's Linear raises first. While tracing, bfloat16 + float16 gives a float32 query beside a float16 cache."
)
_UPSTREAM = "nothing landed; #108, #128, #172, #187 and #203 are open"
_CPU_SPLIT = (
    "float32 weights without autocast, and a float16 KV cache that slice assignment fills in silence: the first "
    "attention sees a float32 query and float16 keys and values."
)

METAVOICE_DECODE = Case(
    id="metavoice-decode",
    title="MetaVoice, one token, GPU path",
    explanation=f"{_GPU_SPLIT} The cache is written by a tensor index, which refuses another dtype.",
    source=_GPU_SOURCE,
    sizes=tuple(SIZES),
    default_sizes=("cpu",),
    measures=MEASURES,
    definition=("decode", "index_put", _GPU, *_DEFINITION),
    make=partial(build_metavoice, prefill=False, indexed=True, **_GPU),
    full_parameters=FULL_PARAMETERS,
    by_default=False,
    upstream=_UPSTREAM,
)

METAVOICE_PREFILL = Case(
    id="metavoice-prefill",
    title="MetaVoice, a prompt, GPU path",
    explanation=f"{_GPU_SPLIT} A prompt enters an empty cache, so the cost of a cast is spread over its positions.",
    source=_GPU_SOURCE,
    sizes=tuple(SIZES),
    default_sizes=("cpu",),
    measures=MEASURES,
    definition=("prefill", "index_put", _GPU, *_DEFINITION),
    make=partial(build_metavoice, prefill=True, indexed=True, **_GPU),
    full_parameters=FULL_PARAMETERS,
    by_default=False,
    upstream=_UPSTREAM,
)

METAVOICE_DECODE_SLICE = Case(
    id="metavoice-decode-slice",
    title="MetaVoice, one token, GPU path, slice",
    explanation=f"{_GPU_SPLIT} The cache is written by slice assignment, which casts in silence.",
    source=f"{_GPU_SOURCE}; the write of fam/llm/layers/attn.py",
    sizes=tuple(SIZES),
    default_sizes=("cpu",),
    measures=MEASURES,
    definition=("decode", "slice", _GPU, *_DEFINITION),
    make=partial(build_metavoice, prefill=False, indexed=False, **_GPU),
    full_parameters=FULL_PARAMETERS,
    by_default=False,
    upstream=_UPSTREAM,
)

METAVOICE_DECODE_FLOAT32 = Case(
    id="metavoice-decode-float32",
    title="MetaVoice, one token, CPU path",
    explanation=_CPU_SPLIT,
    source=_CPU_SOURCE,
    sizes=tuple(SIZES),
    default_sizes=("cpu",),
    measures=MEASURES,
    definition=("decode", "slice", _CPU, *_DEFINITION),
    make=partial(build_metavoice, prefill=False, indexed=False, **_CPU),
    full_parameters=FULL_PARAMETERS,
    bytes_per_parameter=4.0,
    by_default=False,
    upstream=_UPSTREAM,
)

METAVOICE_PREFILL_FLOAT32 = Case(
    id="metavoice-prefill-float32",
    title="MetaVoice, a prompt, CPU path",
    explanation=f"{_CPU_SPLIT} A prompt enters an empty cache.",
    source=_CPU_SOURCE,
    sizes=tuple(SIZES),
    default_sizes=("cpu",),
    measures=MEASURES,
    definition=("prefill", "slice", _CPU, *_DEFINITION),
    make=partial(build_metavoice, prefill=True, indexed=False, **_CPU),
    full_parameters=FULL_PARAMETERS,
    bytes_per_parameter=4.0,
    by_default=False,
    upstream=_UPSTREAM,
)


T4 = (7, 5)
LAST_MAJOR_WITHOUT_BFLOAT16 = 7


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """Dtypes that a loader leaves a model in."""

    weights: str
    speaker: str
    cache: str
    autocast: str

    @property
    def agrees(self) -> bool:
        """Nothing disagrees: autocast brings operands together, or there is one dtype."""
        return bool(self.autocast) or len({self.weights, self.speaker, self.cache}) == 1


def default_dtype(capability: tuple[int, int] | None) -> str:
    """Dtype that the source asks for."""
    old = capability is None or capability[0] <= LAST_MAJOR_WITHOUT_BFLOAT16
    return "float16" if old else "bfloat16"


def loaded(capability: tuple[int, int] | None, *, loader: Literal["sample", "fast"]) -> Loaded:
    """Dtypes after loading on a device."""
    asked = default_dtype(capability)
    if loader == "fast":
        return Loaded(weights="bfloat16", speaker=asked, cache=asked, autocast="")
    return Loaded(weights="float32", speaker="float32", cache=asked, autocast="" if capability is None else asked)


_STATE = loaded(T4, loader="sample")


def build_metavoice_t4(size: str, *, device: str, seed: int) -> BuiltCase:
    """Build a decode step as ``sample.py`` runs it on a T4."""
    from precision_eval.cases.systems.metavoice_model import MetaVoice, MetaVoiceUnderAutocast

    built = metavoice_case(
        SIZES[size], device=device, seed=seed, prefill=False, indexed=False, weight_dtype=_STATE.weights,
        speaker_dtype=_STATE.speaker,
    )  # fmt: skip
    decoder = cast(MetaVoice, built.model.requires_grad_(True))
    return BuiltCase(MetaVoiceUnderAutocast(decoder, autocast_dtype=_STATE.autocast).eval(), built.inputs)


METAVOICE_T4 = Case(
    id="metavoice-t4",
    title="MetaVoice, one token, T4",
    explanation=(
        "What runs where bfloat16 is not native: float32 weights, a float16 cache, and the source's own autocast in "
        "float16. Nothing disagrees as shipped; the weights take twice what half storage does, and autocast's copies "
        "half as much again. This first stage alone fits a T4, and does not explain that its memory ran out: the "
        "second stage, the codec and loading are not in it."
    ),
    source="metavoiceio/metavoice-src #27: fam/llm/sample.py, fam/llm/layers/attn.py, fam/llm/utils.py",
    upstream=(
        "nothing landed for #27, which is open: float16 became the default on compute capability 7 and below, which is "
        "the state as shipped here"
    ),
    sizes=tuple(SIZES),
    default_sizes=("cpu",),
    measures=SYSTEM_MEASURES,
    definition=(
        "decode", "slice", asdict(_STATE), {name: asdict(size) for name, size in SIZES.items()}, "metavoice v1",
    ),
    make=build_metavoice_t4,
    full_parameters=FULL_PARAMETERS,
    bytes_per_parameter=4.0,
    by_default=False,
)  # fmt: skip
