"""How late an estimate is against its reference; reported, never corrected.

Conventions: late is positive; the peak of the magnitude of the cross-correlation within ± `max_lag_s`, so that an
inverted copy has a lag too; the smallest lag where several are equal. Signals are read in excerpts, so memory is
constant; :func:`lag_s` reads all of them, ``compare`` 8 s, evenly spread.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.fft

from audio_metrics.errors import ParameterError, UndefinedMetricError
from audio_metrics.signal import Source, checked_pair, clean
from audio_metrics.sums import inner_product

MAX_LAG_S = 0.5
MAX_EXCERPTS = 8
_EXCERPT_LAGS = 2  # length of an excerpt in units of the largest lag
_TIE = 1e-9


@dataclass(frozen=True)
class Lag:
    """A lag and how far to believe it."""

    lag_s: float
    correlation: float


def measure_lag(
    reference: Source, estimate: Source, *, max_lag_s: float = MAX_LAG_S, max_excerpts: int | None = MAX_EXCERPTS
) -> Lag:
    """Lag of one source against another of equal length."""
    n_lags = round(max_lag_s * reference.sample_rate_hz)
    if n_lags < 1:
        raise ParameterError(f"max_lag_s is {max_lag_s!r}; expected at least one sample, as 0.5")
    excerpt = _EXCERPT_LAGS * n_lags
    n_fft = scipy.fft.next_fast_len(excerpt + 2 * n_lags, real=True)
    spectrum = np.zeros(n_fft // 2 + 1, np.complex128)
    energies = np.zeros(2)
    for start in _starts(reference.n_samples, excerpt, max_excerpts):
        stop = min(start + excerpt, reference.n_samples)
        first, last = max(start - n_lags, 0), min(stop + n_lags, reference.n_samples)
        both = np.zeros((2, n_fft))
        r, e = both[0, : stop - start], both[1]
        r[:] = clean(reference.read(start, stop))[0]
        offset = first - (start - n_lags)
        e[offset : offset + last - first] = clean(estimate.read(first, last))[0]
        own = e[n_lags : n_lags + stop - start]
        energies += [inner_product(r, r), inner_product(own, own)]
        spectra = scipy.fft.rfft(both, axis=-1)
        spectrum += np.conj(spectra[0], out=spectra[0]) * spectra[1]
    if not np.all(energies > 0.0):
        return Lag(float("nan"), float("nan"))
    correlation = scipy.fft.irfft(spectrum, n_fft)[: 2 * n_lags + 1]
    magnitude = np.abs(correlation)
    lags = np.flatnonzero(magnitude >= magnitude.max() * (1.0 - _TIE)) - n_lags
    lag = int(lags[np.argmin(np.abs(lags))])
    coefficient = float(correlation[lag + n_lags] / np.sqrt(energies.prod()))
    return Lag(lag / reference.sample_rate_hz, coefficient)


def _starts(n_samples: int, excerpt: int, max_excerpts: int | None) -> list[int]:
    every = list(range(0, n_samples, excerpt))
    if max_excerpts is None or len(every) <= max_excerpts:
        return every
    chosen = np.linspace(0, len(every) - 1, max_excerpts).round().astype(int)
    return [every[index] for index in chosen]


def lag_s(reference: np.ndarray, estimate: np.ndarray, *, sample_rate_hz: int, max_lag_s: float = MAX_LAG_S) -> float:
    """Lag of the estimate, from the peak of the magnitude of the cross-correlation of the whole signals.

    Parameters
    ----------
    reference, estimate : np.ndarray, shape (n_samples,)
        Same dtype and length. Samples that are not finite count as zero.
    sample_rate_hz : int
    max_lag_s : float
        Largest lag looked for, in seconds.

    Returns
    -------
    float
        Seconds; positive where the estimate is late.

    Raises
    ------
    ParameterError
        The signals cannot be compared.
    UndefinedMetricError
        Either signal is digital silence.
    """
    pair = checked_pair(reference, estimate, sample_rate_hz=sample_rate_hz, aligned=True)
    lag = measure_lag(*pair, max_lag_s=max_lag_s, max_excerpts=None)
    if np.isnan(lag.lag_s):
        raise UndefinedMetricError("the reference or the estimate is digital silence; a lag has no value")
    return lag.lag_s
