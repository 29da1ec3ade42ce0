"""CogVideoX's text encoder (T5-v1.1-XXL): float16 with ``wo`` kept in float32, under a fused norm that refuses it.

transformers keeps the feed-forward's last projection, ``wo``, in float32 when it loads a T5 in float16
(``_keep_in_fp32_modules``; huggingface/transformers PR #20683). From the first feed-forward on the residual stream is
then float32. Where apex was installed, transformers also swapped ``T5LayerNorm`` for apex's ``FusedRMSNorm``, whose
kernel reads the weight in the input's dtype, so that the second block's first norm raises: zai-org/CogVideo #170. The
stock norm takes float32 and returns the weight's dtype.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial

from precision_eval.cases.base import SYSTEM_MEASURES, Case, built_by

DTYPE = "float16"
KEPT_WIDE = "wo"
"""The projection that stays in float32; transformers' own name for it."""
BUCKETS = 32
MAX_DISTANCE = 128
NORM_EPS = 1e-6
PAD_ID, END_ID = 0, 1
FULL_PARAMETERS = 4_762_310_656
"""Of the published model; ``precision-eval plan`` counts them."""
BYTES_PER_PARAMETER = 2.4
"""As shipped: float16, the ``wo`` of every block, a fifth of all, in float32."""

OUTLIER_CHANNELS = 2
SINK_CHANNELS = 2
OUTLIER_NEURONS = 8
OUTLIER = 2.0**18
"""What the first block writes into the outlier channels: four times the smallest power of two beyond float16."""
SINK = 16.0
"""Of the sink channels, in units of the other channels' standard deviation in the embedding."""
GATE = 128.0
"""Of the outlier neurons, before the activation, and of the factor that they are multiplied with."""

# Standard deviations. Updates are those of all sublayers together, in units of the residual's: beside outliers the norm
# does not bring the other channels back, and the gated product is quadratic in them, so that larger updates run away.
RESIDUAL_STD = 64.0
UPDATE_STD = 0.5
POSITION_STD = 1.0
GAIN_STD = 0.05


@dataclass(frozen=True, kw_only=True)
class T5Size:
    """Hyperparameters of the encoder, and the lengths of a call."""

    layers: int
    heads: int
    head_dim: int
    dim: int
    hidden: int
    vocabulary: int
    tokens: int
    prompt: int


SIZES: dict[str, T5Size] = {
    "tiny": T5Size(layers=2, heads=2, head_dim=16, dim=64, hidden=160, vocabulary=96, tokens=24, prompt=10),
    "cpu": T5Size(layers=2, heads=4, head_dim=64, dim=256, hidden=640, vocabulary=32128, tokens=226, prompt=60),
    "full": T5Size(layers=24, heads=64, head_dim=64, dim=4096, hidden=10240, vocabulary=32128, tokens=226, prompt=60),
}


_DEFINITION = (
    (DTYPE, KEPT_WIDE, BUCKETS, MAX_DISTANCE, NORM_EPS, PAD_ID, END_ID),
    {name: asdict(size) for name, size in SIZES.items()},
    (OUTLIER_CHANNELS, SINK_CHANNELS, OUTLIER_NEURONS, OUTLIER, SINK, GATE),
    ("randn", RESIDUAL_STD, UPDATE_STD, POSITION_STD, GAIN_STD, "v1"),
)
_SOURCE = (
    "zai-org/CogVideo #170; huggingface/transformers 4.44, src/transformers/models/t5/modeling_t5.py; sizes: "
    "google/t5-v1_1-xxl; overflow: transformers #5651, #9295, #20287, PR #20683"
)

COGVIDEO_T5_ENCODER = Case(
    id="cogvideo-t5-encoder",
    title="CogVideo's T5, fused norm",
    explanation=(
        "float16 weights, but wo stays float32: the residual is float32 from the first feed-forward on, and apex's "
        "fused norm, whose weight is float16, rejects it in the second block. The norm is not an operation of torch, "
        "so casts at torch's operations do not reach it."
    ),
    source=f"{_SOURCE}; NVIDIA/apex, apex/normalization/fused_layer_norm.py, csrc/layer_norm_cuda.cpp",
    sizes=tuple(SIZES),
    default_sizes=("cpu",),
    measures=SYSTEM_MEASURES,
    definition=("fused norm", *_DEFINITION),
    make=partial(built_by, f"{__name__}_model:build_t5", fused=True),
    full_parameters=FULL_PARAMETERS,
    bytes_per_parameter=BYTES_PER_PARAMETER,
    by_default=False,
    upstream="huggingface/transformers PR #45723: T5 keeps its own norm where apex is installed",
)

COGVIDEO_T5_ENCODER_STOCK = replace(
    COGVIDEO_T5_ENCODER,
    id="cogvideo-t5-encoder-stock",
    title="CogVideo's T5, stock norm",
    explanation=(
        "The same encoder with transformers' own norm, which accepts the float32 residual and returns the weight's "
        "dtype: as shipped it passes. float16 throughout overflows in wo and ends in NaN."
    ),
    source=_SOURCE,
    definition=("stock norm", *_DEFINITION),
    make=partial(built_by, f"{__name__}_model:build_t5", fused=False),
    upstream="",
)
