"""Does a degradation show in a reading that is no copy? Areas under the curve of free-running detection.

The shipped voice reads twelve scripts twice, with two noise seeds; both are cut into windows of 60 s. A
null pair is a window of the first reading and one of the second: of the same seconds of the script (*same script*), or
of other seconds of the same speaker (*other words*). A positive is the same pair with its second window degraded. The
null model of the speakers that are judged is fitted on the other speakers only (two halves, then the other way round).
The area is the chance that a positive scores above a noise floor; its interval is a bootstrap over speakers. Sizes
were fixed before measuring; the first of each kind has the target, the others inform.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile
from scipy.stats import mannwhitneyu

from audio_metrics.free_running import Description, NullModel, describe, free_running_distances
from validation.audio.ratio import Ratio
from validation.audio.signals import spoken
from validation.audio_ladder.rungs import Rung, rung_by_name

WINDOW_S = 60
MINUTES = 4
LEAST = 0.95
FALSE_ALARMS = 0.05

SIZES: dict[str, tuple[Rung, ...]] = {
    "noise": (rung_by_name("noise 40 dB SNR"), rung_by_name("noise 50 dB SNR")),
    "drift": (
        rung_by_name("tilt drift -1 dB/octave/min"),
        rung_by_name("gain drift -2 dB/min"),
    ),
    "tilt": (rung_by_name("tilt -1 dB/octave"), rung_by_name("tilt -0.5 dB/octave")),
    "clock skew": (rung_by_name("clock skew 100 ppm"), rung_by_name("clock skew 1000 ppm")),
}

_RESAMPLES = 1000


def figures(folder: Path) -> list[Ratio]:
    """Areas for every kind and size, with both nulls, beside the plain Fréchet distance."""
    first, rate = _windows(spoken(folder, minutes=MINUTES, seed=0))
    second, _ = _windows(spoken(folder, minutes=MINUTES, seed=1))
    references = [[describe(window, sample_rate_hz=rate) for window in speaker] for speaker in first]
    clean = [[describe(window, sample_rate_hz=rate) for window in speaker] for speaker in second]
    noise_floors = {name: scores(references, clean, clean, same=same) for name, same in _NOISE_FLOORS.items()}
    found = []
    for kind, rungs in SIZES.items():
        for number, rung in enumerate(rungs):
            degraded = [
                [
                    describe(rung.apply(window, sample_rate_hz=rate).astype(window.dtype), sample_rate_hz=rate)
                    for window in speaker
                ]
                for speaker in second
            ]
            for name, same in _NOISE_FLOORS.items():
                positive = scores(references, clean, degraded, same=same)
                target = LEAST if number == 0 and _has_target(kind, name) else None
                found.append(_figure(rung, name, noise_floors[name], positive, target))
    return found


_NOISE_FLOORS = {"same script": True, "other words": False}


def _has_target(kind: str, noise_floor: str) -> bool:
    """A clock shows only against a reading that keeps the same time."""
    return noise_floor == "same script" or kind != "clock skew"


def _windows(paths: list[Path]) -> tuple[list[list[np.ndarray]], int]:
    """Windows of 60 s of each speaker, float64."""
    speakers, rate = [], 0
    for path in paths:
        samples, rate = soundfile.read(path, dtype="float64")
        length = WINDOW_S * rate
        speakers.append([samples[i : i + length] for i in range(0, len(samples) - length + 1, length)])
    return speakers, rate


def scores(
    references: list[list[Description]], clean: list[list[Description]], judged: list[list[Description]], *, same: bool
) -> dict[str, list[np.ndarray]]:
    """Scores of pairs, per detector and speaker."""
    n_speakers = len(references)
    found: dict[str, list[np.ndarray]] = {"null model": [], "plain Fréchet": []}
    for speaker in range(n_speakers):
        others = [other for other in range(n_speakers) if other % 2 != speaker % 2]
        model = NullModel.fit([pair for other in others for pair in _pairs(references[other], clean[other], same=same)])
        pairs = _pairs(references[speaker], judged[speaker], same=same)
        found["null model"].append(np.array([model.score(*pair) for pair in pairs]))
        found["plain Fréchet"].append(np.array([free_running_distances(*pair)["frechet_distance"] for pair in pairs]))
    return found


def _pairs(first: list[Description], second: list[Description], *, same: bool) -> list[tuple[Description, Description]]:
    return [(a, b) for i, a in enumerate(first) for j, b in enumerate(second) if (i == j) == same]


def area(noise_floor: np.ndarray, positive: np.ndarray) -> float:
    """Chance that a positive scores above a noise floor, ties half: Mann and Whitney's U over the number of pairs."""
    return float(
        mannwhitneyu(positive, noise_floor, method="asymptotic").statistic / (len(positive) * len(noise_floor))
    )


def _figure(
    rung: Rung,
    noise_floor_name: str,
    noise_floor: dict[str, list[np.ndarray]],
    positive: dict[str, list[np.ndarray]],
    least: float | None,
) -> Ratio:
    areas = {name: area(np.concatenate(noise_floor[name]), np.concatenate(positive[name])) for name in noise_floor}
    low, high = _interval(noise_floor["null model"], positive["null model"])
    threshold = float(np.quantile(np.concatenate(noise_floor["null model"]), 1.0 - FALSE_ALARMS))
    caught = float(np.mean(np.concatenate(positive["null model"]) > threshold))
    return Ratio(
        name=f"detection of {rung.name} in {WINDOW_S} s, {noise_floor_name}",
        value=areas["null model"],
        low=low,
        high=high,
        least=least,
        rounds=sum(map(len, positive["null model"])),
        unit="AUC",
        note=f"{100 * caught:.0f} % found at {100 * FALSE_ALARMS:.0f} % false alarms; plain Fréchet "
        f"{areas['plain Fréchet']:.2f}",
    )


def _interval(noise_floor: list[np.ndarray], positive: list[np.ndarray]) -> tuple[float, float]:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(_RESAMPLES):
        drawn = rng.integers(len(noise_floor), size=len(noise_floor))
        found.append(
            area(np.concatenate([noise_floor[i] for i in drawn]), np.concatenate([positive[i] for i in drawn]))
        )
    low, high = np.quantile(found, (0.025, 0.975))
    return float(low), float(high)
