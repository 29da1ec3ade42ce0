"""Constants and sizes of imaginAIry's time embedding, and of what is drawn for it. Loads no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from precision_eval.core.errors import ParameterError

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

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 1:
                raise ParameterError(f"'{name}' of a time embedding's size is {value}; expected a positive integer")
        if self.frames < 2:
            raise ParameterError("'frames' is 1; a schedule of timesteps needs two or more")
        for name, value in (("channels", self.channels), ("label_channels", self.label_channels)):
            if value % 2:
                raise ParameterError(f"'{name}' is {value}; sines and cosines take half each, so make it even")


SIZES: dict[str, TimeEmbedSize] = {
    "tiny": TimeEmbedSize(frames=4, channels=32, label_channels=16, embedding=128),
    "cpu": TimeEmbedSize(frames=14, channels=320, label_channels=256, embedding=1280),  # SVD
    "full": TimeEmbedSize(frames=25, channels=320, label_channels=256, embedding=1280),  # SVD-XT
}
