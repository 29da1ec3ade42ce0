"""Dia-1.6B's decoder and encoder in the states in which they raised: sizes, cases, and how a case is built.

The architecture, the sizes and the states were read in nari-labs/dia, ``dia/layers.py``, ``dia/state.py`` and
``dia/model.py``. One call of the decoder is one decode step of both guidance rows: 9 channel tokens under the delay
pattern, a static cache whose last filled slot the call writes again, cross attention to keys and values computed
beforehand. One call of the encoder reads a whole padded text. Attention has scale 1.0; there is no 1/√d.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial

from precision_eval.cases.base import SYSTEM_MEASURES, Case, built_by

GUIDANCE_ROWS = 2
CHANNELS = 9
VOCABULARY = 1028
CODES = 1024
BOS = 1026
DELAYS = (0, 8, 9, 10, 11, 12, 13, 14, 15)
BYTES = 256
NORM_EPS = 1e-5
LONGEST_TIMESCALE = 10_000.0
ATTENTION_SCALE = 1.0
DECODER_PARAMETERS = 1_359_214_592
ENCODER_PARAMETERS = 251_945_984
"""Of the published model's two halves, each a case of its own; ``precision-eval plan`` counts their sum."""

# Standard deviations of what is drawn, chosen so that activations keep order one. A projection's are in units of
# 1/√(its inputs). Attention logits spread by 2: with unit logits the mean over thousands of random values would leave
# attention next to nothing to say. Without 1/√d in the scale, queries and keys are √2·d^(-1/4) wide each, as trained
# norms would have it. The head's gives logits a language model's spread; the norms' gains scatter about 1.
ATTENTION_LOGIT_STD = 2.0
LOGIT_STD = 3.0
NORM_GAIN_STD = 0.1
TEXT_SHARE = 0.75  # of the text's length in use, the rest is padding


@dataclass(frozen=True, kw_only=True)
class DiaState:
    """Which dtypes the source stores and computes in, and what landed after it."""

    commit: str
    weights: str
    compute: str
    cache: str
    fix: str


D4790DD = DiaState(commit="d4790dd", weights="float16", compute="float16", cache="float16", fix="127")
BEFORE_PR45 = DiaState(commit="before 9d0e434", weights="float32", compute="bfloat16", cache="float32", fix="45")


@dataclass(frozen=True, kw_only=True)
class DecoderSize:
    """Hyperparameters of the decoder, and the lengths of a call."""

    layers: int
    width: int
    hidden: int
    heads: int
    cache_heads: int
    head_dim: int
    cross_heads: int
    cross_head_dim: int
    encoder_width: int
    text_length: int
    slots: int
    filled: int
    cross_rotary: bool = True


@dataclass(frozen=True, kw_only=True)
class EncoderSize:
    """Hyperparameters of the encoder, and the length of a call."""

    layers: int
    width: int
    hidden: int
    heads: int
    head_dim: int
    text_length: int


DECODER_SIZES: dict[str, DecoderSize] = {
    "tiny": DecoderSize(
        layers=2, width=64, hidden=256, heads=4, cache_heads=1, head_dim=16, cross_heads=4, cross_head_dim=16,
        encoder_width=32, text_length=24, slots=64, filled=48,
    ),
    "cpu": DecoderSize(
        layers=2, width=512, hidden=2048, heads=4, cache_heads=1, head_dim=128, cross_heads=4, cross_head_dim=128,
        encoder_width=256, text_length=1024, slots=3072, filled=2304,
    ),
    "full": DecoderSize(
        layers=18, width=2048, hidden=8192, heads=16, cache_heads=4, head_dim=128, cross_heads=16, cross_head_dim=128,
        encoder_width=1024, text_length=1024, slots=3072, filled=2304,
    ),
}  # fmt: skip

ENCODER_SIZES: dict[str, EncoderSize] = {
    "tiny": EncoderSize(layers=2, width=32, hidden=128, heads=4, head_dim=16, text_length=24),
    "cpu": EncoderSize(layers=2, width=128, hidden=512, heads=2, head_dim=128, text_length=256),
    "full": EncoderSize(layers=12, width=1024, hidden=4096, heads=16, head_dim=128, text_length=1024),
}


_DRAW = (CHANNELS, VOCABULARY, DELAYS, ATTENTION_LOGIT_STD, LOGIT_STD, NORM_GAIN_STD, TEXT_SHARE, "randn, v1")
_SOURCE = "nari-labs/dia, dia/layers.py and dia/state.py"

DIA_DECODE = Case(
    id="dia-decode",
    title="Dia decoder, one step",
    explanation=(
        "Half weights and a half static cache, but float32 gains in nn.RMSNorm. If torch's norm returns float32 (2.6), "
        "a float32 query meets the float16 cache, which slice assignment filled with a silent cast. If it returns half "
        "(2.13), the step passes, so the status depends on the torch version. There CPU autocast raises instead: the "
        "rotation concatenates half tensors, which its promotion supports only on CUDA."
    ),
    source=f"{_SOURCE} at d4790dd (PR #88); #108, #113, #158; landed: 4a9e29b (PR #127)",
    sizes=tuple(DECODER_SIZES),
    default_sizes=("cpu",),
    measures=SYSTEM_MEASURES,
    definition=(
        "decode", asdict(D4790DD), {name: asdict(size) for name, size in DECODER_SIZES.items()}, *_DRAW
    ),
    make=partial(built_by, f"{__name__}_model:build_decoder", state=D4790DD),
    full_parameters=DECODER_PARAMETERS,
    by_default=False,
    upstream="PR #127 (4a9e29b)",
)  # fmt: skip

DIA_DECODE_PR45 = replace(
    DIA_DECODE,
    id="dia-decode-pr45",
    title="Dia decoder, one step, before PR #45",
    explanation=(
        "The opposite error: bfloat16 activations, float32 weights and cache. The step's keys are appended to the "
        "float32 cache, which promotes them. If torch's norm returns bfloat16, the query is narrower than the keys; if "
        "it returns float32 (2.6), the step passes."
    ),
    source=f"{_SOURCE} before 9d0e434; PR #45; landed: 9d0e434",
    definition=(
        "decode", asdict(BEFORE_PR45), {name: asdict(size) for name, size in DECODER_SIZES.items()}, *_DRAW
    ),
    make=partial(built_by, f"{__name__}_model:build_decoder", state=BEFORE_PR45),
    bytes_per_parameter=4.0,  # the embeddings alone are narrower
    upstream="PR #45 (9d0e434)",
)  # fmt: skip

DIA_ENCODE = replace(
    DIA_DECODE,
    id="dia-encode",
    title="Dia encoder, one text",
    explanation=(
        "Half weights and float32 gains in nn.RMSNorm, no cache: query, key and value come from one norm and always "
        "agree. As shipped it passes; if torch's norm returns float32 (2.6), attention silently runs in float32."
    ),
    source=f"{_SOURCE} at d4790dd (PR #88); landed: 4a9e29b (PR #127)",
    sizes=tuple(ENCODER_SIZES),
    definition=(
        "encode", asdict(D4790DD), {name: asdict(size) for name, size in ENCODER_SIZES.items()}, *_DRAW
    ),
    make=partial(built_by, f"{__name__}_model:build_encoder", state=D4790DD),
    full_parameters=ENCODER_PARAMETERS,
)  # fmt: skip
