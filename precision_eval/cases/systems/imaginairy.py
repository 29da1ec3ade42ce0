"""imaginAIry's video model (Stable Video Diffusion): a float32 time embedding in front of float16 Linears.

``timestep_embedding`` returns float32 whatever it is given, the model is ``.half()``, and 42a045e switched autocast off
(``and False`` in ``platform_appropriate_autocast``), so the first Linear of ``time_embed`` raises:
brycedrennan/imaginAIry #442. Attention is never reached. Storing everything in one half does not help: the embedding
stays float32. The second path, the label embedding of frame rate, motion bucket and noise augmentation, gets float32
in the same way.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import partial

from precision_eval.cases.base import SYSTEM_MEASURES, Case, built_by

WEIGHT_DTYPE = "float16"
MAX_PERIOD = 10_000.0
TICKS_PER_STEP = 2**20

# The discrete schedule's last index, and the EDM schedule of imaginairy/configs/svd.yaml with sgm's defaults.
LAST_STEP = 999
SIGMA_MAX, SIGMA_MIN, RHO = 700.0, 0.002, 7.0

# What the label embeds: frames per second, motion bucket, noise augmentation; generate_video's defaults.
LABELS = (6.0, 127.0, 0.02)

# Standard deviations: weights in units of 1/√(their inputs), doubled as SiLU halves; biases in the output's units.
WEIGHT_STD = 2.0
BIAS_STD = 0.1


@dataclass(frozen=True, kw_only=True)
class TimeEmbedSize:
    """Widths of the embedding, and the frames of a clip."""

    frames: int
    channels: int
    label_channels: int
    embedding: int


SIZES: dict[str, TimeEmbedSize] = {
    "tiny": TimeEmbedSize(frames=4, channels=32, label_channels=16, embedding=128),
    "cpu": TimeEmbedSize(frames=14, channels=320, label_channels=256, embedding=1280),  # SVD
    "full": TimeEmbedSize(frames=25, channels=320, label_channels=256, embedding=1280),  # SVD-XT
}


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
        "timestep_embedding returns float32, the Linears of time_embed and label_emb are float16, and autocast is off. "
        "A cast at the Linear comes after the embedding, which is the right place."
    ),
    source=(
        "brycedrennan/imaginAIry #442, 42a045e, PR #443 (d3106fc): imaginairy/modules/sgm/diffusionmodules/util.py, "
        "video_model.py; widths: imaginairy/configs/svd.yaml"
    ),
    sizes=tuple(SIZES),
    default_sizes=("cpu",),
    measures=SYSTEM_MEASURES,
    definition=("cast nowhere", *_DEFINITION),
    make=partial(built_by, f"{__name__}_model:build_time_embed", cast_first=False),
    by_default=False,
    upstream="PR #443 (d3106fc, 14.0.4): autocast on again, on CUDA only",
)

IMAGINAIRY_TIME_EMBED_CAST_FIRST = replace(
    IMAGINAIRY_TIME_EMBED,
    id="imaginairy-time-embed-cast-first",
    title="imaginAIry, timestep cast first",
    explanation=(
        "A faulty fix, which never shipped: the timestep is cast to the weights' dtype before the embedding. It raises "
        "nothing. In float16 it costs little; in bfloat16 the timestep 999 becomes 1000, which has another embedding. "
        "Only drift shows it, and only in eager mode: inductor fuses cast and embedding, and never rounds."
    ),
    source=(
        "the place of the cast as in diffusers, UNetSpatioTemporalConditionModel (after the embedding), and its reverse"
    ),
    definition=("cast first", *_DEFINITION),
    make=partial(built_by, f"{__name__}_model:build_time_embed", cast_first=True),
    upstream="",
)
