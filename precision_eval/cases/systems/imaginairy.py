"""imaginAIry's video model (Stable Video Diffusion): a float32 time embedding in front of float16 Linears.

``timestep_embedding`` returns float32 whatever it is given, the model is ``.half()``, and 42a045e switched autocast off
(``and False`` in ``platform_appropriate_autocast``), so the first Linear of ``time_embed`` raises:
brycedrennan/imaginAIry #442. Attention is never reached. Storing everything in one half does not help: the embedding
stays float32. The second path, the label embedding of frame rate, motion bucket and noise augmentation, gets float32
in the same way.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from functools import partial

from precision_eval.cases.base import SYSTEM_MEASURES, BuiltCase, Case
from precision_eval.cases.systems.imaginairy_sizes import (
    BIAS_STD,
    LABELS,
    LAST_STEP,
    MAX_PERIOD,
    RHO,
    SIGMA_MAX,
    SIGMA_MIN,
    SIZES,
    TICKS_PER_STEP,
    WEIGHT_DTYPE,
    WEIGHT_STD,
)


def discrete_timesteps(count: int) -> list[float]:
    """Timesteps of a discrete schedule, evenly spaced."""
    return [float(round(LAST_STEP * (1 - index / (count - 1)))) for index in range(count)]


def edm_timesteps(count: int) -> list[float]:
    """Timesteps of SVD: ¼ ln σ along the EDM schedule."""
    high, low = SIGMA_MAX ** (1 / RHO), SIGMA_MIN ** (1 / RHO)
    return [0.25 * math.log((high + index / (count - 1) * (low - high)) ** RHO) for index in range(count)]


def timestep_ticks(frames: int) -> list[int]:
    """Timesteps of a batch in ticks: the discrete schedule's, then SVD's."""
    return [round(step * TICKS_PER_STEP) for step in (*discrete_timesteps(frames), *edm_timesteps(frames))]


def build_time_embed(size: str, *, device: str, seed: int, cast_first: bool) -> BuiltCase:
    """Build the time embedding."""
    import torch

    from precision_eval.cases.systems.imaginairy_model import (
        CastFirstTimeEmbedding,
        TimeEmbedding,
        drawn_weights,
        timestep_embedding,
    )

    widths = SIZES[size]
    generator = torch.Generator().manual_seed(seed)
    model = (CastFirstTimeEmbedding if cast_first else TimeEmbedding)(widths)
    model.load_state_dict(drawn_weights(model, generator, getattr(torch, WEIGHT_DTYPE)), assign=True)
    label = timestep_embedding(torch.tensor(LABELS), widths.label_channels).flatten()  # (3 × label_channels,)
    labels = label.repeat(2 * widths.frames, 1)
    ticks = torch.tensor(timestep_ticks(widths.frames))
    return BuiltCase(model.eval().requires_grad_(False).to(device), (ticks.to(device), labels.to(device)))


_DEFINITION = (
    WEIGHT_DTYPE,
    {name: asdict(size) for name, size in SIZES.items()},
    (MAX_PERIOD, TICKS_PER_STEP, LAST_STEP, SIGMA_MAX, SIGMA_MIN, RHO, LABELS),
    ("randn", WEIGHT_STD, BIAS_STD, "v1"),
)

IMAGINAIRY_TIME_EMBED = Case(
    id="imaginairy-time-embed",
    title="imaginAIry, time embedding",
    explanation=(
        "timestep_embedding returns float32, the Linears of time_embed and label_emb are float16 and autocast is off. "
        "A cast at the Linear comes after the embedding, and that is the right place."
    ),
    source=(
        "brycedrennan/imaginAIry #442, 42a045e, PR #443 (d3106fc): imaginairy/modules/sgm/diffusionmodules/util.py, "
        "video_model.py; widths: imaginairy/configs/svd.yaml"
    ),
    sizes=tuple(SIZES),
    default_sizes=("cpu",),
    measures=SYSTEM_MEASURES,
    definition=("cast nowhere", *_DEFINITION),
    make=partial(build_time_embed, cast_first=False),
    by_default=False,
    upstream="PR #443 (d3106fc, 14.0.4): autocast on again, on CUDA only",
)

IMAGINAIRY_TIME_EMBED_CAST_FIRST = Case(
    id="imaginairy-time-embed-cast-first",
    title="imaginAIry, timestep cast first",
    explanation=(
        "The fault, not a state that shipped: the timestep is cast to the weights' dtype before the embedding. It "
        "raises nothing. In float16 it costs little; in bfloat16 the timestep 999 becomes 1000 and its embedding is "
        "another one. Only drift shows it, and only in eager: inductor fuses cast and embedding, and never rounds."
    ),
    source=(
        "the place of the cast as in diffusers, UNetSpatioTemporalConditionModel (after the embedding), and its reverse"
    ),
    sizes=tuple(SIZES),
    default_sizes=("cpu",),
    measures=SYSTEM_MEASURES,
    definition=("cast first", *_DEFINITION),
    make=partial(build_time_embed, cast_first=True),
    by_default=False,
)
