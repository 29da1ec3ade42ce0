"""CogVideoX's text encoder (T5-v1.1-XXL): float16 with ``wo`` kept in float32, under a fused norm that refuses it.

transformers keeps the feed-forward's last projection, ``wo``, in float32 when it loads a T5 in float16
(``_keep_in_fp32_modules``; huggingface/transformers PR #20683). From the first feed-forward on the residual stream is
then float32. Where apex was installed, transformers also swapped ``T5LayerNorm`` for apex's ``FusedRMSNorm``, whose
kernel reads the weight in the input's dtype, so that the second block's first norm raises: zai-org/CogVideo #170. The
stock norm takes float32 and returns the weight's dtype.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

from precision_eval.cases.base import SYSTEM_MEASURES, BuiltCase, Case
from precision_eval.cases.systems.cogvideo_t5_sizes import (
    BUCKETS,
    BYTES_PER_PARAMETER,
    DTYPE,
    END_ID,
    FULL_PARAMETERS,
    GAIN_STD,
    GATE,
    KEPT_WIDE,
    MAX_DISTANCE,
    NORM_EPS,
    OUTLIER,
    OUTLIER_CHANNELS,
    OUTLIER_NEURONS,
    PAD_ID,
    POSITION_STD,
    RESIDUAL_STD,
    SINK,
    SINK_CHANNELS,
    SIZES,
    UPDATE_STD,
)


def build_t5(size: str, *, device: str, seed: int, fused: bool) -> BuiltCase:
    """Build the encoder."""
    import torch

    from precision_eval.cases.systems.cogvideo_t5_model import T5Encoder, drawn_weights

    shape = SIZES[size]
    generator = torch.Generator().manual_seed(seed)
    model = T5Encoder(shape, fused=fused)
    model.load_state_dict(drawn_weights(model, shape, generator, getattr(torch, DTYPE)), assign=True)
    ids = torch.full((1, shape.tokens), PAD_ID)
    ids[0, : shape.prompt - 1] = torch.randint(END_ID + 1, shape.vocabulary, (shape.prompt - 1,), generator=generator)
    ids[0, shape.prompt - 1] = END_ID
    return BuiltCase(model.eval().requires_grad_(False).to(device), (ids.to(device),))


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
        "float16 weights, with wo kept in float32: the residual is float32 from the first feed-forward on, and apex's "
        "fused norm, with its float16 weight, refuses it in the second block. Not an operation of torch: casts at "
        "torch's own sites do not reach it."
    ),
    source=f"{_SOURCE}; NVIDIA/apex, apex/normalization/fused_layer_norm.py, csrc/layer_norm_cuda.cpp",
    sizes=tuple(SIZES),
    default_sizes=("cpu",),
    measures=SYSTEM_MEASURES,
    definition=("fused norm", *_DEFINITION),
    make=partial(build_t5, fused=True),
    full_parameters=FULL_PARAMETERS,
    bytes_per_parameter=BYTES_PER_PARAMETER,
    by_default=False,
    upstream="huggingface/transformers PR #45723: T5 keeps its own norm where apex is installed",
)

COGVIDEO_T5_ENCODER_STOCK = Case(
    id="cogvideo-t5-encoder-stock",
    title="CogVideo's T5, stock norm",
    explanation=(
        "The same encoder with transformers' own norm, which takes the float32 residual and returns the weight's "
        "dtype: as shipped it passes. Everything in float16 overflows in wo and ends in NaN."
    ),
    source=_SOURCE,
    sizes=tuple(SIZES),
    default_sizes=("cpu",),
    measures=SYSTEM_MEASURES,
    definition=("stock norm", *_DEFINITION),
    make=partial(build_t5, fused=False),
    full_parameters=FULL_PARAMETERS,
    bytes_per_parameter=BYTES_PER_PARAMETER,
    by_default=False,
)
