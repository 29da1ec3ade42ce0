"""RUNGS: every degradation of the ladder at every size, as data, from mild to severe within a kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from validation.audio_ladder import degrade

NEEDS_RATE = frozenset(
    function for name, function in vars(degrade).items()
    if not name.startswith("_") and "sample_rate_hz" in getattr(function, "__annotations__", {})
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Rung:
    name: str
    function: Callable[..., np.ndarray]
    options: dict[str, Any] = field(default_factory=dict)

    def apply(self, signal: np.ndarray, *, sample_rate_hz: int) -> np.ndarray:
        options = dict(self.options)
        if self.function in NEEDS_RATE:
            options["sample_rate_hz"] = sample_rate_hz
        return self.function(signal, **options)


def family(
    kind: str, unit: str, function: Callable[..., np.ndarray], option: str, values: tuple[float, ...], *,
    scale: float = 1.0, **fixed: Any,
) -> tuple[Rung, ...]:  # fmt: skip
    """Return the rungs of one kind; the function is given each value times `scale` as `option`."""
    return tuple(
        Rung(name=f"{kind} {value:g} {unit}", function=function, options={option: value * scale, **fixed})
        for value in values
    )


RUNGS: tuple[Rung, ...] = (
    *family("noise", "dB SNR", degrade.add_noise, "snr_db", (80, 60, 50, 40, 30, 20)),
    Rung(name="float16 samples", function=degrade.round_to_half),
    *family("quantised", "bit", degrade.quantise, "bits", (16, 14, 12, 10, 8)),
    *family("low-pass", "Hz", degrade.low_pass, "cutoff_hz", (7000, 6000, 4000, 2000)),
    *family("tilt", "dB/octave", degrade.tilt, "db_per_octave", (-0.1, -0.5, -1, -3)),
    *family("gain drift", "dB/min", degrade.drift_gain, "db_per_min", (-0.1, -0.5, -2)),
    Rung(name="inverted", function=np.negative),
    *family("clipped", "% of samples", degrade.clip, "share", (0.01, 0.1, 1), scale=0.01),
    *family("drop-outs of 20 ms", "/min", degrade.drop_out, "per_minute", (1, 10, 60), length_s=0.02),
    Rung(name="other words", function=degrade.unrelated),
)


def rung_by_name(name: str) -> Rung:
    return next(rung for rung in RUNGS if rung.name == name)
