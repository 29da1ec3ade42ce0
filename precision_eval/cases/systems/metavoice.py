"""MetaVoice-1B's first stage, in the two states in which it raised: sizes, cases, and how a case is built.

The architecture and the sizes were read in metavoiceio/metavoice-src, ``fam/llm/fast_model.py``; the sampler in
``fam/llm/fast_inference_utils.py``. One call is one forward pass of both guidance rows (with and without the speaker)
against a static KV cache, and the sampler's probabilities for the last position:

- *decode*: one position, the last of those filled; its slot is written again at every call;
- *prefill*: the prompt's positions from slot 0 on, in an empty cache.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from precision_eval.cases.base import SYSTEM_MEASURES, Case, built_by

CACHE_DTYPE = "float16"
GUIDANCE_ROWS = 2
GUIDANCE = 3.0
TOP_P = 0.95
TEMPERATURE = 1.0
NORM_EPS = 1e-5
FULL_PARAMETERS = 1_248_438_272
"""Of the published model; ``precision-eval plan`` counts them."""

# Standard deviations of what is drawn, chosen so that activations keep order one. A projection's are in units of
# 1/√(its inputs). Queries are drawn twice as wide as keys: with unit logits the mean over 1536 random values would
# leave attention next to nothing to say, and trained attention is peaked. The head's gives logits a language model's
# spread. The norms' gains scatter about 1. The speaker embedding has unit norm, as the speaker encoder's has.
TOKEN_STD = 0.9
POSITION_STD = 0.3
SPEAKER_STD = 0.3
QUERY_STD = 2.0
LOGIT_STD = 3.0
NORM_GAIN_STD = 0.1


@dataclass(frozen=True, kw_only=True)
class MetaVoiceSize:
    """Hyperparameters of the decoder, and the lengths of a call."""

    layers: int
    heads: int
    head_dim: int
    hidden: int
    vocabulary: int
    speaker_dim: int
    slots: int
    filled: int
    prompt: int

    @property
    def dim(self) -> int:
        """Width of the residual stream."""
        return self.heads * self.head_dim


SIZES: dict[str, MetaVoiceSize] = {
    "tiny": MetaVoiceSize(
        layers=2, heads=2, head_dim=16, hidden=88, vocabulary=96, speaker_dim=16, slots=64, filled=48, prompt=8,
    ),
    "cpu": MetaVoiceSize(
        layers=2, heads=4, head_dim=128, hidden=1408, vocabulary=2562, speaker_dim=256, slots=2048, filled=1536,
        prompt=64,
    ),
    "full": MetaVoiceSize(
        layers=24, heads=16, head_dim=128, hidden=5632, vocabulary=2562, speaker_dim=256, slots=2048, filled=1536,
        prompt=64,
    ),
}  # fmt: skip

MEASURES = SYSTEM_MEASURES

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
    "Weights are always bfloat16, whatever precision is requested; speaker embedding and KV cache are float16. In "
    "eager mode the speaker's Linear raises first. When compiled, bfloat16 + float16 gives a float32 query for a "
    "float16 cache."
)
_UPSTREAM = "nothing landed; #108, #128, #172, #187 and #203 are open"
_CPU_SPLIT = (
    "float32 weights without autocast, and a float16 KV cache that slice assignment fills with a silent cast: the "
    "first attention gets a float32 query and float16 keys and values."
)

METAVOICE_DECODE = Case(
    id="metavoice-decode",
    title="MetaVoice, one token, GPU path",
    explanation=f"{_GPU_SPLIT} The cache is written by a tensor index, which rejects another dtype.",
    source=_GPU_SOURCE,
    sizes=tuple(SIZES),
    default_sizes=("cpu",),
    measures=MEASURES,
    definition=("decode", "index_put", _GPU, *_DEFINITION),
    make=partial(built_by, f"{__name__}_model:build_metavoice", prefill=False, indexed=True, **_GPU),
    full_parameters=FULL_PARAMETERS,
    by_default=False,
    upstream=_UPSTREAM,
)

METAVOICE_PREFILL = replace(
    METAVOICE_DECODE,
    id="metavoice-prefill",
    title="MetaVoice, a prompt, GPU path",
    explanation=f"{_GPU_SPLIT} A prompt enters an empty cache, so its positions share the cost of a cast.",
    definition=("prefill", "index_put", _GPU, *_DEFINITION),
    make=partial(built_by, f"{__name__}_model:build_metavoice", prefill=True, indexed=True, **_GPU),
)

METAVOICE_DECODE_SLICE = replace(
    METAVOICE_DECODE,
    id="metavoice-decode-slice",
    title="MetaVoice, one token, GPU path, slice",
    explanation=f"{_GPU_SPLIT} The cache is written by slice assignment, which casts silently.",
    source=f"{_GPU_SOURCE}; the write of fam/llm/layers/attn.py",
    definition=("decode", "slice", _GPU, *_DEFINITION),
    make=partial(built_by, f"{__name__}_model:build_metavoice", prefill=False, indexed=False, **_GPU),
)

METAVOICE_DECODE_FLOAT32 = replace(
    METAVOICE_DECODE,
    id="metavoice-decode-float32",
    title="MetaVoice, one token, CPU path",
    explanation=_CPU_SPLIT,
    source=_CPU_SOURCE,
    definition=("decode", "slice", _CPU, *_DEFINITION),
    make=partial(built_by, f"{__name__}_model:build_metavoice", prefill=False, indexed=False, **_CPU),
    bytes_per_parameter=4.0,
)

METAVOICE_PREFILL_FLOAT32 = replace(
    METAVOICE_DECODE_FLOAT32,
    id="metavoice-prefill-float32",
    title="MetaVoice, a prompt, CPU path",
    explanation=f"{_CPU_SPLIT} A prompt enters an empty cache.",
    definition=("prefill", "slice", _CPU, *_DEFINITION),
    make=partial(built_by, f"{__name__}_model:build_metavoice", prefill=True, indexed=False, **_CPU),
)

T4_STATE = {"weights": "float32", "speaker": "float32", "cache": CACHE_DTYPE, "autocast": "float16"}
"""What ``fam/llm/sample.py`` leaves where bfloat16 is not native: autocast brings the operands together."""

METAVOICE_T4 = replace(
    METAVOICE_DECODE_FLOAT32,
    id="metavoice-t4",
    title="MetaVoice, one token, T4",
    explanation=(
        "For cards without native bfloat16: float32 weights, a float16 cache, and the source's own float16 autocast. "
        "As shipped, no dtypes conflict; the weights take twice the memory of half storage, and autocast's copies half "
        "as much again. This first stage alone fits a T4 and does not explain the report of running out of memory: the "
        "second stage, the codec and loading are not included."
    ),
    source="metavoiceio/metavoice-src #27: fam/llm/sample.py, fam/llm/layers/attn.py, fam/llm/utils.py",
    upstream=(
        "nothing landed for #27, which is open: float16 became the default on compute capability 7 and below, which is "
        "the state as shipped here"
    ),
    measures=SYSTEM_MEASURES,
    definition=(
        "decode", "slice", T4_STATE, {name: asdict(size) for name, size in SIZES.items()}, "metavoice v1",
    ),
    make=partial(built_by, f"{__name__}_model:build_metavoice_t4"),
)  # fmt: skip
