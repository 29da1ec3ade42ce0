"""STOI and PESQ in segments of 10 s, from optional libraries.

Conventions: the file is cut into segments of 10 s from 0 (a last one is kept from half its length; a shorter file is
one segment), each is scored by itself, and a file's value is the mean: the cost stays linear, and pesq does not crash
on long files as it does from about four minutes. A segment in which the reference is exactly zero, that holds a bad
sample, or in which the library finds nothing to judge has no value; one in which the estimate alone is exactly zero is
infinitely bad, and the file has no value. Neither is a headline: STOI saturates (0.9999 at
40 dB SNR) and PESQ misses a spectral tilt.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np

from audio_metrics.distribution import checked_mean, long_windows
from audio_metrics.errors import AudioParameterError, backend
from audio_metrics.signal import Source, checked_pair, clean, refuse_bad_samples

SEGMENT_S = 10.0
PESQ_MODES = {8000: "nb", 16000: "wb"}
Scorer = Callable[[np.ndarray, np.ndarray, int], float]
"""Reference, estimate, sample rate in Hz → score, NaN where there is none."""


def _stoi_of(reference: np.ndarray, estimate: np.ndarray, sample_rate_hz: int) -> float:
    score = backend("pystoi", "stoi", extra="perceptual").stoi
    with warnings.catch_warnings():
        # pystoi warns and answers 1e-5 where fewer than 30 frames are left
        warnings.filterwarnings("error", message="Not enough STFT frames", category=RuntimeWarning)
        try:
            return float(score(reference, estimate, sample_rate_hz, extended=False))
        except RuntimeWarning:
            return float("nan")


def _pesq_of(reference: np.ndarray, estimate: np.ndarray, sample_rate_hz: int) -> float:
    library = backend("pesq", "pesq", extra="perceptual")
    if sample_rate_hz not in PESQ_MODES:
        raise AudioParameterError(
            f"sample_rate_hz is {sample_rate_hz}; PESQ is defined at 8000 and 16000 Hz: resample both, knowingly, first"
        )
    values = library.PesqError.RETURN_VALUES
    score = float(library.pesq(sample_rate_hz, reference, estimate, PESQ_MODES[sample_rate_hz], on_error=values))
    return score if score >= 0.0 else float("nan")  # -1: no utterance, or a segment too short


SCORERS: dict[str, Scorer] = {"stoi": _stoi_of, "pesq": _pesq_of}


def segment_scores(reference: Source, estimate: Source, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Scores of all segments of an aligned pair."""
    length, n_segments = long_windows(reference, SEGMENT_S)
    starts = np.arange(n_segments) * length
    scores = np.full(len(starts), np.nan)
    for index, start in enumerate(starts):
        stop = min(int(start) + length, reference.n_samples)
        cleaned = [clean(source.read(int(start), stop)) for source in (reference, estimate)]
        if any(bad is not None for _, bad, _ in cleaned) or cleaned[0][2] == 0.0:
            continue
        if cleaned[1][2] == 0.0:
            scores[index] = -np.inf
        else:
            first, second = (samples.astype(np.float64) for samples, _, _ in cleaned)
            scores[index] = SCORERS[name](first, second, reference.sample_rate_hz)
    return starts / reference.sample_rate_hz, scores


def _mean_score(reference: np.ndarray, estimate: np.ndarray, name: str, *, sample_rate_hz: int) -> float:
    pair = checked_pair(reference, estimate, sample_rate_hz=sample_rate_hz, aligned=True)
    refuse_bad_samples(*pair)
    return checked_mean(segment_scores(*pair, name)[1], "enough speech")


def stoi(reference: np.ndarray, estimate: np.ndarray, *, sample_rate_hz: int) -> float:
    """Short-time objective intelligibility, the mean over segments of 10 s.

    Parameters
    ----------
    reference, estimate : np.ndarray, shape (n_samples,)
        Same dtype and alignment.
    sample_rate_hz : int

    Returns
    -------
    float
        Up to 1, higher is better.

    Raises
    ------
    BackendError
        ``pystoi`` is not installed.
    AudioParameterError
        The signals cannot be compared, or a sample is not finite.
    UndefinedMetricError
        No segment holds enough speech.

    References
    ----------
    .. [1] C. Taal et al., "An algorithm for intelligibility prediction of time-frequency weighted noisy speech", IEEE
       Trans. ASLP 19(7), 2011.
    """
    return _mean_score(reference, estimate, "stoi", sample_rate_hz=sample_rate_hz)


def pesq(reference: np.ndarray, estimate: np.ndarray, *, sample_rate_hz: int) -> float:
    """PESQ as a mean opinion score (MOS-LQO), the mean over segments of 10 s.

    Parameters, returns and errors as in :func:`stoi`; the library is ``pesq``, the range 1 to 4.65, the sample rate
    8000 Hz (narrow band) or 16000 Hz (wide band).

    References
    ----------
    .. [1] ITU-T P.862, P.862.1 and P.862.2.
    """
    return _mean_score(reference, estimate, "pesq", sample_rate_hz=sample_rate_hz)
