"""Where pieces of a reference stand in an estimate: late, moved, cut short, put into another order, or nowhere.

Conventions: pieces of half a second are looked for in the whole estimate at some 4 kHz, then followed every eighth of a
second at the full rate. A lag is in samples, late is positive. Only the first two minutes are looked at, so memory is
constant. The thresholds were chosen after looking at the shipped speech and at made-up speech.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import scipy.fft

from audio_metrics.lag import read_around
from audio_metrics.signal import Source

LOOKED_AT_S = 120.0
_SIZES = ((0.5, 0.8), (0.25, 0.92))  # seconds of a piece, and the correlation from which it is there
_STEP_S = 0.125
_COARSE_HZ = 4000
_MAX_PIECES, _MAX_STEPS = 24, 480
_LOUD = 0.03  # of the mean energy of a piece: softer ones say nothing
_MARGIN_S = 0.03
_MOST_LOST = 0.4  # share of the pieces that have to be there
_SURE_STEP = 0.95
_AGREE, _STRAY = 0.4, 0.75  # shares of the pieces
_AS_GOOD = 0.97  # of the best correlation: the nearest of several places that are alike is meant
_SAME_LAG = 2  # samples
_SINGLE = 2  # neighbours that make a lag more than an accident


@dataclass(frozen=True)
class Seam:
    """A place where the lag changes; `samples` are missing from the estimate there (too many where negative)."""

    at: int
    samples: int


@dataclass(frozen=True)
class Match:
    """What was looked for and where it stands; arrays have a value per piece."""

    starts: np.ndarray
    lags: np.ndarray
    is_sure: np.ndarray
    track: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), int))  # samples and the lags there
    seams: list[Seam] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Share of the pieces that stand somewhere in the estimate."""
        return float(self.is_sure.mean()) if len(self.starts) else 0.0

    @property
    def lag(self) -> int:
        """The lag of most pieces; 0 where they agree on none."""
        lags = self.lags[self.is_sure]
        return int(np.median(lags)) if len(lags) and self.in_order else 0

    @property
    def in_order(self) -> bool:
        found = self.starts[self.is_sure] + self.lags[self.is_sure]
        return bool(np.all(np.diff(found) >= 0))


def match(reference: Source, estimate: Source) -> Match:
    """Look for the pieces of the reference in the estimate, and for the seams between those that lie in order."""
    fold = max(1, reference.sample_rate_hz // _COARSE_HZ)
    coarse = [_folded(source, fold) for source in (reference, estimate)]
    found = max((_find(reference, estimate, coarse, fold, *size) for size in _SIZES), key=lambda found: found.share)
    lags = found.lags[found.is_sure]
    if found.share < _MOST_LOST or not found.in_order or np.ptp(lags) <= _SAME_LAG:
        return found
    track = _track(reference, estimate, found)
    return replace(found, track=np.array(track, int).reshape(-1, 2), seams=_seams(reference, estimate, track))


def _find(
    reference: Source, estimate: Source, coarse: list[np.ndarray], fold: int, piece_s: float, least: float
) -> Match:
    """Look for pieces of one size everywhere."""
    length = round(piece_s * reference.sample_rate_hz / fold)
    starts = np.arange(0, max(1, len(coarse[0]) - length + 1), length)
    starts = starts[np.linspace(0, len(starts) - 1, min(len(starts), _MAX_PIECES)).round().astype(int)]
    energies = np.array([np.square(coarse[0][start : start + length]).sum() for start in starts])
    starts = starts[energies > _LOUD * energies.mean()]
    n_fft = scipy.fft.next_fast_len(len(coarse[1]) + length, real=True)
    spectrum = scipy.fft.rfft(coarse[1], n_fft)
    lags, sure = [], []
    for start in starts.tolist():
        scores = _scores(coarse[0][start : start + length], coarse[1], spectrum, n_fft)
        near = np.flatnonzero(np.abs(scores) >= _AS_GOOD * np.abs(scores).max(initial=0.0)) - start
        around = int(near[np.argmin(np.abs(near))]) if len(near) else 0
        lag, correlation = _refine(reference, estimate, start * fold, around * fold, 2 * fold, length * fold)
        lags.append(lag)
        sure.append(abs(correlation) >= least)
    found = np.array(lags, int)
    agree = np.abs(found[:, None] - found) <= _SAME_LAG  # chance does not put many pieces at one lag, however noisy
    most = agree[np.argmax(agree.sum(axis=1))] if len(found) else agree.any(axis=0)
    is_sure = np.array(sure, bool) | (most if most.sum() >= max(3, _AGREE * len(found)) else False)
    ordered = _in_order(starts * fold + found, is_sure)
    return Match(starts * fold, found, ordered if ordered.sum() >= _STRAY * is_sure.sum() else is_sure)


def _in_order(places: np.ndarray, is_sure: np.ndarray) -> np.ndarray:
    """The most of the sure places that rise, which leaves out a piece that is like another."""
    chains: list[list[int]] = []
    for index in np.flatnonzero(is_sure).tolist():
        before = [chain for chain in chains if places[chain[-1]] <= places[index]]
        chains.append([*max(before, key=len, default=[]), index])
    kept = np.zeros(len(places), bool)
    kept[max(chains, key=len, default=[])] = True
    return kept


def _folded(source: Source, fold: int) -> np.ndarray:
    """The first minutes of a source, means of `fold` samples each."""
    stop = min(source.n_samples, round(LOOKED_AT_S * source.sample_rate_hz)) // fold
    parts = []
    for start in range(0, stop, 1 << 16):
        end = min(start + (1 << 16), stop)
        parts.append(read_around(source, start * fold, end * fold).reshape(-1, fold).mean(axis=1))
    return np.concatenate(parts) if parts else np.zeros(0)


def _scores(piece: np.ndarray, signal: np.ndarray, spectrum: np.ndarray, n_fft: int) -> np.ndarray:
    """Normalised correlation of a piece with every stretch of a signal, shape (len(signal) - len(piece) + 1,)."""
    n = len(signal) - len(piece) + 1
    if n < 1:
        return np.zeros(0)
    product = scipy.fft.irfft(spectrum * np.conj(scipy.fft.rfft(piece, n_fft)), n_fft)[:n]
    energy = np.concatenate([[0.0], np.cumsum(np.square(signal))])
    stretches = energy[len(piece) :] - energy[:n]
    scale = np.sqrt(np.maximum(stretches, 1e-3 * stretches.max()) * np.square(piece).sum())
    return np.divide(product, scale, out=np.zeros(n), where=scale > 0.0)


def _refine(
    reference: Source, estimate: Source, start: int, around: int, margin: int, length: int
) -> tuple[int, float]:
    """The best lag within a margin at the full rate, and the correlation there."""
    piece = read_around(reference, start, start + length)
    region = read_around(estimate, start + around - margin, start + around + margin + length)
    n_fft = scipy.fft.next_fast_len(len(region) + length, real=True)
    scores = _scores(piece, region, scipy.fft.rfft(region, n_fft), n_fft)
    best = int(np.argmax(np.abs(scores)))
    return around + best - margin, float(scores[best])


def _track(reference: Source, estimate: Source, found: Match) -> list[tuple[int, int]]:
    """Follow the lag from piece to piece."""
    rate = reference.sample_rate_hz
    starts, lags = found.starts[found.is_sure], found.lags[found.is_sure]
    step = max(round(_STEP_S * rate), int(starts[-1]) // _MAX_STEPS)
    length, margin = 2 * round(_STEP_S * rate), round(_MARGIN_S * rate)
    track: list[tuple[int, int]] = []
    for start in range(0, max(1, min(reference.n_samples, round(LOOKED_AT_S * rate)) - length + 1), step):
        after = int(np.searchsorted(starts, start, side="right"))
        near = lags[max(0, after - 1) : after + 1]
        middle, spread = int(near.min() + near.max()) // 2, int(np.ptp(near)) // 2 + margin
        lag, correlation = _refine(reference, estimate, start, middle, spread, length)
        if abs(correlation) >= _SURE_STEP:
            track.append((start, lag))
    return track


def _seams(reference: Source, estimate: Source, track: list[tuple[int, int]]) -> list[Seam]:
    """Locate every change of the lag between runs of places that share one."""
    length = 2 * round(_STEP_S * reference.sample_rate_hz)
    runs: list[list[tuple[int, int]]] = []
    for place in track:
        if runs and abs(place[1] - runs[-1][-1][1]) <= _SAME_LAG:
            runs[-1].append(place)
        else:
            runs.append([place])
    solid = [run for run in runs if len(run) >= _SINGLE]
    seams = [_seam(reference, estimate, before[-1], after[0], length) for before, after in pairwise(solid)]
    return [seam for seam in seams if seam.samples]


def _seam(reference: Source, estimate: Source, before: tuple[int, int], after: tuple[int, int], length: int) -> Seam:
    """Where between two places the lag of the second fits better than that of the first."""
    start, stop = before[0], after[0] + length
    r = read_around(reference, start, stop)
    errors = [np.square(r - read_around(estimate, start + lag, stop + lag)) for lag in (before[1], after[1])]
    cost = np.cumsum(errors[0]) + errors[1].sum() - np.cumsum(errors[1])
    return Seam(start + int(np.argmin(cost)) + 1, before[1] - after[1])
