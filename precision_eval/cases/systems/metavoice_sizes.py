"""Constants and sizes of MetaVoice-1B's first stage, and of what is drawn for it. Loads no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from precision_eval.core.errors import ParameterError

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

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 1:
                raise ParameterError(f"'{name}' of a MetaVoice size is {value}; expected a positive integer")
        for name, value in (("filled", self.filled), ("prompt", self.prompt)):
            if value > self.slots:
                raise ParameterError(f"'{name}' is {value}, but the cache has {self.slots} slots; raise 'slots'")

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
