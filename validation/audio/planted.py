"""Are failures told in the first line, and only failures? Each kind is planted from obvious to barely audible.

A pair is made-up speech and the same with noise 40 dB down; a planted pair has one fault in the second signal. A fault
is *told* where the headline names its kind. Clean pairs differ in seed, level and noise; a false alarm is a headline
that says anything but that no fault was found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from audio_metrics import AudioComparison, compare
from validation.audio.ratio import Ratio
from validation.audio.signals import SAMPLE_RATE_HZ, speech_like

SECONDS = 12
N_CLEAN = 50
_START = 5 * SAMPLE_RATE_HZ

Fault = Callable[[np.ndarray, float], np.ndarray]


def _written(samples: np.ndarray, length_s: float, value: float) -> np.ndarray:
    samples[_START : _START + max(1, round(length_s * SAMPLE_RATE_HZ))] = value
    return samples


def _loudest(samples: np.ndarray) -> int:
    return _START + int(np.argmax(np.abs(samples[_START : _START + SAMPLE_RATE_HZ])))


def _dropout(samples: np.ndarray, length_s: float) -> np.ndarray:
    start = _loudest(samples)
    samples[start : start + round(length_s * SAMPLE_RATE_HZ)] = 0.0
    return samples


def _repeated(samples: np.ndarray, length_s: float) -> np.ndarray:
    length = round(length_s * SAMPLE_RATE_HZ)
    samples[_START : _START + length] = samples[_START - length : _START]
    return samples


def _clipped(samples: np.ndarray, share_of_peak: float) -> np.ndarray:
    level = share_of_peak * np.abs(samples).max()
    return np.clip(samples, -level, level)


def _late(samples: np.ndarray, delay_s: float) -> np.ndarray:
    n = 2 * len(samples)
    phase = np.exp(-2j * np.pi * np.fft.rfftfreq(n) * delay_s * SAMPLE_RATE_HZ)
    return np.fft.irfft(np.fft.rfft(samples, n) * phase, n)[: len(samples)].astype(samples.dtype)


PLANTED: dict[str, tuple[str, tuple[float, ...], Fault]] = {
    "overflow to infinity, s": ("non_finite", (5.0, 0.1, 0.0), lambda x, s: _written(x, s, np.inf)),
    "overflow to 1e30, s": ("non_finite", (5.0, 0.1, 0.0), lambda x, s: _written(x, s, 1e30)),
    "overflow to 65504, s": ("full_scale", (5.0, 0.1, 0.0), lambda x, s: _written(x, s, 65504.0)),
    "NaN, s": ("non_finite", (5.0, 0.1, 0.0), lambda x, s: _written(x, s, np.nan)),
    "silence, s": ("silent", (7.0, 4.0, 2.0), lambda x, s: _written(x, s, 0.0)),
    "dropout, s": ("dropout", (0.5, 0.05, 0.01, 0.005), _dropout),
    "repeat, s": ("repeat", (3.0, 1.0, 0.5), _repeated),
    "clipping, share of the peak": ("clipped", (0.3, 0.5, 0.7), _clipped),
    "lag, s": ("lag", (0.05, 0.01067, 0.001, 0.0001, 0.00001), _late),
}
"""Fault and its unit → kind of the flag, sizes from obvious to barely audible, and how it is made."""


def pair(seed: int, *, level: float = 1.0, noise_db: float = 40.0) -> tuple[np.ndarray, np.ndarray]:
    """Made-up speech and the same with noise, float32."""
    reference = level * speech_like(SECONDS, seed=seed, dtype="float64")
    noise = np.random.default_rng([7, seed]).standard_normal(len(reference))
    estimate = reference + noise * reference.std() * 10.0 ** (-noise_db / 20.0)
    return reference.astype(np.float32), estimate.astype(np.float32)


def _compared(reference: np.ndarray, estimate: np.ndarray) -> AudioComparison:
    return compare(reference, estimate, sample_rate_hz=SAMPLE_RATE_HZ, inspect_each=True)


def names_fault(kind: str, fault: Fault, size: float) -> bool:
    """Whether the headline names a fault of that size."""
    reference, estimate = pair(1)
    result = _compared(reference, fault(estimate, size))
    messages = [flag.message for flag in result.flags if flag.kind == kind and flag.signal != "reference"]
    return bool(messages) and messages[0] in result.headline


def false_alarms() -> list[str]:
    """Headlines of clean pairs that say more than that no fault was found."""
    levels, noises_db = (0.05, 0.3, 1.0, 2.0), (20.0, 40.0, 60.0, 90.0, 10.0)
    alarms = []
    for seed in range(N_CLEAN):
        result = _compared(*pair(seed, level=levels[seed % 4], noise_db=noises_db[seed % 5]))
        if not result.headline.startswith("no fault found"):
            alarms.append(f"seed {seed}: {result.headline}")
    return alarms


def figures() -> Iterator[Ratio]:
    """What of each kind was told, and the false alarms."""
    for name, (kind, sizes, fault) in PLANTED.items():
        answers = {size: names_fault(kind, fault, size) for size in sizes}
        n_told = sum(answers.values())
        missed = ", ".join(f"{size:g}" for size, answer in answers.items() if not answer)
        yield _count(
            f"told: {name}",
            n_told,
            least=len(sizes),
            note=f"of {len(sizes)}" + (f"; missed {missed}" if missed else ""),
        )
    alarms = false_alarms()
    yield _count(
        "false alarms", len(alarms), most=0, note=f"of {N_CLEAN} clean pairs {'; '.join(alarms)[:200]}".strip()
    )


def _count(name: str, value: int, *, least: int | None = None, most: int | None = None, note: str) -> Ratio:
    return Ratio(name=name, value=value, low=value, high=value, least=least, most=most, unit="", note=note)
