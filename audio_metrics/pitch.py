"""Fundamental frequency of an estimate against its aligned reference, on sampled windows.

Conventions: the tracker is ``librosa.pyin`` from 60 to 500 Hz, frames of 64 ms every 10.7 ms. pyin rounds to a tenth
of a semitone, so the frequency of a voiced frame is refined within half a semitone of it, at the least squared
difference of the samples; voicing is pyin's. Both signals are tracked on the same windows of 5 s, at most 8 of them,
evenly spread over the file (tracking a second costs as much as a hundred seconds of the shared pass). The definitions
are those of ``mir_eval.melody`` where it has them. Not an RMSE: octave slips of the tracker alone would decide it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from audio_metrics.errors import AudioParameterError, UndefinedMetricError, backend
from audio_metrics.signal import Source, checked_pair, clean, refuse_bad_samples

LOWEST_HZ = 60.0
HIGHEST_HZ = 500.0
GROSS_RATIO = 0.2
PITCH_WINDOW_S = 5.0
PITCH_MAX_WINDOWS = 8

_FRAME_S = 0.064
_NEAR = 2.0 ** (1.0 / 24.0)  # half a semitone


@dataclass(frozen=True)
class PitchErrors:
    """Counts of one or several stretches, and the cents of their frames that are voiced in both."""

    n_frames: int
    n_both_voiced: int
    n_voicing_errors: int
    n_gross_errors: int
    cents: np.ndarray

    @staticmethod
    def pooled(parts: Sequence[PitchErrors]) -> PitchErrors:
        """All stretches as one."""
        counts = ("n_frames", "n_both_voiced", "n_voicing_errors", "n_gross_errors")
        sums = {name: sum(getattr(part, name) for part in parts) for name in counts}
        return PitchErrors(**sums, cents=np.concatenate([np.zeros(0), *(part.cents for part in parts)]))

    def value(self, name: str) -> float:
        """The metric of that name; NaN where no frame is left to judge."""
        nan = float("nan")
        if name == "f0_error_cents":
            return float(np.median(self.cents)) if self.n_both_voiced else nan
        if name == "gross_pitch_error":
            return self.n_gross_errors / self.n_both_voiced if self.n_both_voiced else nan
        errors = {
            "voicing_decision_error": self.n_voicing_errors,
            "f0_frame_error": self.n_voicing_errors + self.n_gross_errors,
        }
        return errors[name] / self.n_frames if self.n_frames else nan


PITCH_METRICS = ("f0_error_cents", "voicing_decision_error", "gross_pitch_error", "f0_frame_error")


def track(samples: np.ndarray, *, sample_rate_hz: int) -> np.ndarray:
    """Fundamental frequency of a stretch of signal in Hz, shape (n_frames,); NaN where unvoiced."""
    librosa = backend("librosa", "a pitch", extra="pitch")  # slow to import, and needed only here
    frame = 2 * round(_FRAME_S * sample_rate_hz / 2)
    hop = round(256 * sample_rate_hz / 24000)
    if len(samples) < frame:
        raise AudioParameterError(f"{len(samples)} samples are too few for a pitch; expected at least {frame}")
    if not samples.any():
        return np.full(1 + len(samples) // hop, np.nan)
    signal = samples.astype(np.float64)
    f0_hz, voiced, _ = librosa.pyin(
        signal,
        fmin=LOWEST_HZ,
        fmax=HIGHEST_HZ,
        sr=sample_rate_hz,
        frame_length=frame,
        hop_length=hop,
        fill_na=None,
    )
    for index in np.flatnonzero(voiced):
        f0_hz[index] = _refined(signal, index * hop, frame // 2, f0_hz[index], sample_rate_hz)
    return np.where(voiced, f0_hz, np.nan)


def _refined(signal: np.ndarray, centre: int, length: int, coarse_hz: float, sample_rate_hz: int) -> float:
    """Lag of the least squared difference near a coarse value, by a parabola through the three lowest lags."""
    shortest = int(sample_rate_hz / (coarse_hz * _NEAR)) - 1
    longest = int(sample_rate_hz / coarse_hz * _NEAR) + 2
    start = centre - (length + longest) // 2
    if start < 0 or start + length + longest > len(signal):
        return coarse_hz
    views = np.lib.stride_tricks.sliding_window_view(signal[start : start + length + longest], length)
    apart = np.square(views[shortest : longest + 1] - views[0]).sum(axis=1)
    best = int(np.argmin(apart))
    if not 0 < best < len(apart) - 1:
        return coarse_hz
    left, middle, right = apart[best - 1 : best + 2]
    curvature = left - 2.0 * middle + right
    shift = 0.5 * (left - right) / curvature if curvature > 0.0 else 0.0
    return float(sample_rate_hz / (shortest + best + shift))


def pitch_errors_of(reference_hz: np.ndarray, estimate_hz: np.ndarray) -> PitchErrors:
    """Compare two tracks frame by frame."""
    unvoiced = np.isnan([reference_hz, estimate_hz])
    both = ~unvoiced.any(axis=0)
    ratio = estimate_hz[both] / reference_hz[both]
    return PitchErrors(
        n_frames=len(reference_hz),
        n_both_voiced=int(np.count_nonzero(both)),
        n_voicing_errors=int(np.count_nonzero(unvoiced[0] != unvoiced[1])),
        n_gross_errors=int(np.count_nonzero(np.abs(ratio - 1.0) > GROSS_RATIO)),
        cents=np.abs(1200.0 * np.log2(ratio)),
    )


def sampled_pitch_errors(
    reference: Source, estimate: Source, *, max_windows: int = PITCH_MAX_WINDOWS
) -> tuple[np.ndarray, list[PitchErrors | None]]:
    """Errors on windows of 5 s, evenly spread."""
    if max_windows < 1:
        raise AudioParameterError(f"max_windows is {max_windows}; expected at least 1")
    length = min(round(PITCH_WINDOW_S * reference.sample_rate_hz), reference.n_samples)
    n_windows = min(max_windows, reference.n_samples // length)
    starts = np.linspace(0, reference.n_samples - length, n_windows).astype(int)
    errors: list[PitchErrors | None] = []
    for start in starts:
        cleaned = [clean(source.read(int(start), int(start) + length)) for source in (reference, estimate)]
        if any(bad is not None for _, bad, _ in cleaned) or all(peak == 0.0 for _, _, peak in cleaned):
            errors.append(None)
            continue
        tracks = [track(samples, sample_rate_hz=reference.sample_rate_hz) for samples, _, _ in cleaned]
        errors.append(pitch_errors_of(*tracks))
    return starts / reference.sample_rate_hz, errors


def _pitch_metric(reference: np.ndarray, estimate: np.ndarray, name: str, *, sample_rate_hz: int, n: int) -> float:
    pair = checked_pair(reference, estimate, sample_rate_hz=sample_rate_hz, aligned=True)
    refuse_bad_samples(*pair)
    _, errors = sampled_pitch_errors(*pair, max_windows=n)
    value = PitchErrors.pooled([part for part in errors if part is not None]).value(name)
    if np.isnan(value):
        raise UndefinedMetricError(f"no frame of the sampled windows can be judged; {name} has no value")
    return value


def f0_error_cents(
    reference: np.ndarray, estimate: np.ndarray, *, sample_rate_hz: int, max_windows: int = PITCH_MAX_WINDOWS
) -> float:
    """Median deviation of the fundamental frequency over frames voiced in both signals.

    Parameters
    ----------
    reference, estimate : np.ndarray, shape (n_samples,)
        Same dtype and alignment; 64 ms or more.
    sample_rate_hz : int
    max_windows : int
        Windows of 5 s that are tracked, evenly spread.

    Returns
    -------
    float
        Cents, lower is better.

    Raises
    ------
    AudioParameterError
        The signals cannot be compared, a sample is not finite, or too short for a pitch.
    UndefinedMetricError
        Digital silence in every sampled window, or no frame voiced in both.

    References
    ----------
    .. [1] J. Salamon et al., "Melody extraction from polyphonic music signals", IEEE Signal Processing Magazine 31(2),
       2014; as in ``mir_eval.melody``.
    """
    return _pitch_metric(reference, estimate, "f0_error_cents", sample_rate_hz=sample_rate_hz, n=max_windows)


def voicing_decision_error(
    reference: np.ndarray, estimate: np.ndarray, *, sample_rate_hz: int, max_windows: int = PITCH_MAX_WINDOWS
) -> float:
    """Fraction of frames voiced in one signal and not in the other; otherwise as :func:`f0_error_cents`."""
    return _pitch_metric(reference, estimate, "voicing_decision_error", sample_rate_hz=sample_rate_hz, n=max_windows)


def gross_pitch_error(
    reference: np.ndarray, estimate: np.ndarray, *, sample_rate_hz: int, max_windows: int = PITCH_MAX_WINDOWS
) -> float:
    """Of the frames voiced in both, the fraction more than 20 % off; otherwise as :func:`f0_error_cents`."""
    return _pitch_metric(reference, estimate, "gross_pitch_error", sample_rate_hz=sample_rate_hz, n=max_windows)


def f0_frame_error(
    reference: np.ndarray, estimate: np.ndarray, *, sample_rate_hz: int, max_windows: int = PITCH_MAX_WINDOWS
) -> float:
    """Fraction of frames with a voicing error or more than 20 % off; otherwise as :func:`f0_error_cents`."""
    return _pitch_metric(reference, estimate, "f0_frame_error", sample_rate_hz=sample_rate_hz, n=max_windows)
