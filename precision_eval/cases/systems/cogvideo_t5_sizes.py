"""Constants and sizes of the T5-v1.1 encoder and of what is drawn for it. Loads no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from precision_eval.core.errors import ParameterError

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

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 1:
                raise ParameterError(f"'{name}' of a T5 size is {value}; expected a positive integer")
        if self.prompt > self.tokens:
            raise ParameterError(f"'prompt' is {self.prompt}, but a call has {self.tokens} tokens; raise 'tokens'")
        if self.hidden <= OUTLIER_NEURONS or self.dim <= OUTLIER_CHANNELS + SINK_CHANNELS:
            raise ParameterError(
                f"'hidden' is {self.hidden} and 'dim' {self.dim}; outliers take {OUTLIER_NEURONS} neurons and "
                f"{OUTLIER_CHANNELS + SINK_CHANNELS} channels of them, so more are needed"
            )


SIZES: dict[str, T5Size] = {
    "tiny": T5Size(layers=2, heads=2, head_dim=16, dim=64, hidden=160, vocabulary=96, tokens=24, prompt=10),
    "cpu": T5Size(layers=2, heads=4, head_dim=64, dim=256, hidden=640, vocabulary=32128, tokens=226, prompt=60),
    "full": T5Size(layers=24, heads=64, head_dim=64, dim=4096, hidden=10240, vocabulary=32128, tokens=226, prompt=60),
}
