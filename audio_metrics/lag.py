"""How late an estimate is against its reference, to a fraction of a sample, and what that costs.

Conventions: late is positive; the peak of the magnitude of the cross-correlation within ± `max_lag_s`, so that an
inverted copy has a lag too; the smallest lag where several are equal. Signals are read in excerpts, so memory is
constant; :func:`lag_s` reads all of them, ``compare`` 8 s, evenly spread. Nothing is corrected unless it is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.fft

from audio_metrics.errors import AudioParameterError, UndefinedMetricError
from audio_metrics.signal import Source, checked_pair, clean
from audio_metrics.spectra import inner_product

MAX_LAG_S = 0.5
MAX_EXCERPTS = 8
_EXCERPT_LAGS = 2  # length of an excerpt in units of the largest lag
_TIE = 1e-9
_FINEST = 1e-4  # of a sample
_LEAST_RESIDUAL = 1e-10  # of the energy: 100 dB, where sums of energies end
_NEWTON_STEPS = 8
_FINE_EXCERPTS = 3
_SINC_HALF = 128
_KAISER_BETA = 8.0


@dataclass(frozen=True)
class Lag:
    """A lag, how far to believe it, and how much SI-SDR it alone costs (0 where the estimate is in time)."""

    lag_s: float
    correlation: float
    fine_lag_s: float = float("nan")
    cost_db: float = 0.0


def measure_lag(
    reference: Source, estimate: Source, *, max_lag_s: float = MAX_LAG_S, max_excerpts: int | None = MAX_EXCERPTS
) -> Lag:
    rate = reference.sample_rate_hz
    n_lags = round(max_lag_s * rate)
    if n_lags < 1:
        raise AudioParameterError(f"max_lag_s is {max_lag_s!r}; expected at least one sample, as 0.5")
    excerpt = _EXCERPT_LAGS * n_lags
    starts = _starts(reference.n_samples, excerpt, max_excerpts)
    n_fft = scipy.fft.next_fast_len(excerpt + 2 * n_lags, real=True)
    spectrum = np.zeros(n_fft // 2 + 1, np.complex128)
    energies = np.zeros(2)
    for start in starts:
        both = np.zeros((2, n_fft))
        r, e = both[0, : min(excerpt, reference.n_samples - start)], both[1]
        r[:] = clean(reference.read(start, start + len(r)))[0]
        e[: len(r) + 2 * n_lags] = read_around(estimate, start - n_lags, start + len(r) + n_lags)
        own = e[n_lags : n_lags + len(r)]
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
    coherence_now = float(correlation[n_lags] ** 2 / energies.prod())
    if 1.0 - coherence_now < _LEAST_RESIDUAL:
        return Lag(lag / rate, coefficient, lag / rate, 0.0)
    fine, cost_db = _fine_lag(reference, estimate, lag, starts[:: -(-len(starts) // _FINE_EXCERPTS)], excerpt)
    return Lag(lag / rate, coefficient, fine / rate, cost_db)


def read_around(source: Source, start: int, stop: int) -> np.ndarray:
    """Samples `start` to `stop` with zeros beyond the ends and in place of samples that are not finite."""
    first, last = min(max(start, 0), source.n_samples), max(min(stop, source.n_samples), 0)
    samples = np.zeros(stop - start)
    if last > first:
        samples[first - start : last - start] = clean(source.read(first, last))[0]
    return samples


def _fine_lag(reference: Source, estimate: Source, lag: int, starts: list[int], excerpt: int) -> tuple[float, float]:
    """Lag in samples with its fraction, and the SI-SDR in dB that it costs, from tapered excerpts."""
    length = min(excerpt, reference.n_samples)
    n_fft = scipy.fft.next_fast_len(length, real=True)
    taper = np.hanning(length)
    cross = np.zeros(n_fft // 2 + 1, np.complex128)
    energies, now = np.zeros(3), 0.0  # of the reference, of the estimate moved by the lag, of the estimate as it is
    for start in starts:
        start = min(start, reference.n_samples - length)
        r, moved, still = (
            taper * read_around(source, start + shift, start + shift + length)
            for source, shift in ((reference, 0), (estimate, lag), (estimate, 0))
        )
        energies += [inner_product(r, r), inner_product(moved, moved), inner_product(still, still)]
        now += inner_product(r, still)
        spectra = scipy.fft.rfft(np.stack([r, moved]), n_fft, axis=-1)
        cross += np.conj(spectra[0]) * spectra[1]
    if not np.all(energies > 0.0):
        return float(lag), 0.0
    fraction, peak = _peak_between(cross, n_fft)
    best = 1.0 - peak**2 / (energies[0] * energies[1])
    gain_db = 10.0 * np.log10(max(1.0 - now**2 / (energies[0] * energies[2]), _LEAST_RESIDUAL))
    gain_db -= 10.0 * np.log10(max(best, _LEAST_RESIDUAL))
    return lag + fraction, max(0.0, float(gain_db))


def _peak_between(cross: np.ndarray, n_fft: int) -> tuple[float, float]:
    """Where between −1 and 1 samples the correlation of a cross-spectrum is largest in magnitude, and its value."""
    weights = np.full(len(cross), 2.0 / n_fft)
    weights[0] /= 2.0
    if n_fft % 2 == 0:
        weights[-1] /= 2.0
    angle = 2.0 * np.pi * np.arange(len(cross)) / n_fft
    real, imaginary = weights * cross.real, weights * cross.imag

    shift, value = 0.0, 0.0
    for _ in range(_NEWTON_STEPS):
        cosine, sine = np.cos(shift * angle), np.sin(shift * angle)
        terms = real * cosine - imaginary * sine
        value, bend = float(terms.sum()), -float(terms @ np.square(angle))
        slope = -float((real * sine + imaginary * cosine) @ angle)
        if bend * value >= 0.0:  # no peak here
            break
        move = -slope / bend
        shift = min(max(shift + move, -1.0), 1.0)
        if abs(move) < _FINEST:
            break
    return shift, value


def _starts(n_samples: int, excerpt: int, max_excerpts: int | None) -> list[int]:
    every = list(range(0, n_samples, excerpt))
    if max_excerpts is None or len(every) <= max_excerpts:
        return every
    chosen = np.linspace(0, len(every) - 1, max_excerpts).round().astype(int)
    return [every[index] for index in chosen]


class Moved:
    """A source read `shift` samples later, by a fraction too; covers `n_samples` from its sample `first` on."""

    def __init__(self, source: Source, *, first: int, n_samples: int, shift: float) -> None:
        self.name = source.name
        self.sample_rate_hz = source.sample_rate_hz
        self.n_samples = n_samples
        self.dtype: np.dtype[Any] = source.dtype
        self._source = source
        self._first = first + round(shift)
        fraction = shift - round(shift)
        self._taps: np.ndarray | None = None
        if abs(fraction) > _FINEST:
            at = np.arange(-_SINC_HALF, _SINC_HALF + 1)
            taps = np.sinc(at - fraction) * np.kaiser(len(at), _KAISER_BETA)
            self._taps = taps / taps.sum()

    def read(self, start: int, stop: int) -> np.ndarray:
        if self._taps is None:
            return self._source.read(self._first + start, self._first + stop)
        first, last = self._first + start - _SINC_HALF, self._first + stop + _SINC_HALF
        inside = self._source.read(max(first, 0), min(last, self._source.n_samples))
        samples = np.pad(inside, (max(-first, 0), max(last - self._source.n_samples, 0)))
        return np.asarray(np.convolve(samples, self._taps[::-1], mode="valid").astype(self.dtype))


def overlap(reference: Source, estimate: Source, lag: int) -> tuple[Source, Source]:
    """The part that both have in common where the estimate is `lag` samples late."""
    first = max(-lag, 0)
    n_samples = max(0, min(reference.n_samples - first, estimate.n_samples - first - lag))
    sources = ((reference, 0), (estimate, lag))
    kept, moved = (Moved(source, first=first, n_samples=n_samples, shift=shift) for source, shift in sources)
    return kept, moved


def aligned_by_lag(reference: Source, estimate: Source) -> tuple[tuple[Source, Source], float]:
    """The part that both have in common once the lag is taken out, and the lag in samples."""
    lag = measure_lag(reference, estimate)
    if np.isnan(lag.fine_lag_s) or abs(lag.correlation) == 0.0:
        return overlap(reference, estimate, 0), 0.0
    shift = lag.fine_lag_s * reference.sample_rate_hz
    kept, moved = overlap(reference, estimate, round(shift))
    first = max(-round(shift), 0)
    return (kept, Moved(estimate, first=first, n_samples=moved.n_samples, shift=shift)), shift


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
        Seconds, a whole number of samples; positive where the estimate is late.

    Raises
    ------
    AudioParameterError
        The signals cannot be compared.
    UndefinedMetricError
        Either signal is digital silence.
    """
    pair = checked_pair(reference, estimate, sample_rate_hz=sample_rate_hz, aligned=True)
    lag = measure_lag(*pair, max_lag_s=max_lag_s, max_excerpts=None)
    if np.isnan(lag.lag_s):
        raise UndefinedMetricError("the reference or the estimate is digital silence; a lag has no value")
    return lag.lag_s
