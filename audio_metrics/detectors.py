"""Faults that can be heard without a reference: jumps in the samples, exact repeats, loops.

Conventions: each detector takes the blocks of the shared pass in order and keeps what it needs across their borders,
so block size changes nothing. Samples that are not finite are measured around.

*Jump*: the largest fourth difference of the samples in a cell of 10 ms is more than 16 times the RMS of the others in
the cell and its neighbours. Clean speech stays under 15; a splice is found where it stands out of what is spoken, so
a count of 0 is no proof.
"""

from __future__ import annotations

import hashlib

import numpy as np
import scipy.fft

from audio_metrics.errors import UndefinedMetricError
from audio_metrics.frames import FLOOR, GATE_DB, Block, FrameGrid, blocks
from audio_metrics.signal import ArraySource, refuse_bad_samples

JUMP_RATIO = 16.0
_JUMP_ORDER = 4
_JUMP_CELL_S = 0.01
_JUMP_LEAST_SCALE = 1e-4  # under the rounding of 16-bit samples

REPEAT_S = 0.05
_ANCHORS_PER_S = 8.0
_MIX = np.array([0x9E3779B1, 0x85EBCA77], np.uint32)
_HALF_WORD = np.uint32(16)

LOOP_WINDOW_S = 20.0
LOOP_LAGS_S = (0.3, 8.0)
LOOP_FLAG = 0.3
_LEAST_ACTIVE = 0.25


def _samples(block: Block) -> np.ndarray:
    samples = block.samples[0]
    return samples if block.bad[0] is None else np.where(block.bad[0], np.nan, samples)


class Jumps:
    """Finds jumps in one signal."""

    def __init__(self, grid: FrameGrid) -> None:
        self.starts: list[int] = []
        self._cell = round(_JUMP_CELL_S * grid.sample_rate_hz)
        self._held = np.zeros(0)
        self._first = 0  # sample of held[0]
        self._latest = -2 * self._cell
        self._judged = 0  # cells at the start of held that have been judged

    def add(self, block: Block) -> None:
        """Judge every cell whose neighbours are known."""
        self._held = np.concatenate([self._held, _samples(block).astype(np.float64)])
        self._judge(last=False)

    def finish(self) -> None:
        """Judge the last cells."""
        self._judge(last=True)

    def _judge(self, *, last: bool) -> None:
        n_cells = max(0, len(self._held) - _JUMP_ORDER) // self._cell
        if n_cells == 0:
            return
        steps = np.abs(np.diff(self._held, n=_JUMP_ORDER)[: n_cells * self._cell]).reshape(n_cells, self._cell)
        ordered = np.sort(steps, axis=1)  # NaN last: a cell with a bad sample has a NaN for its largest
        scale = np.sqrt(np.mean(np.square(ordered[:, : -(_JUMP_ORDER + 2)]), axis=1))  # one step makes five of them
        around = np.pad(scale, 1)
        local = np.maximum(np.maximum(around[:-2], around[2:]), np.maximum(scale, _JUMP_LEAST_SCALE))
        stop = n_cells if last else n_cells - 1
        found = np.flatnonzero((ordered[:, -1] > JUMP_RATIO * local)[self._judged : stop]) + self._judged
        for start in (self._first + int(cell) * self._cell for cell in found):
            if start - self._latest > self._cell:  # a step on the border of two cells is one jump
                self.starts.append(start)
            self._latest = start
        kept = max(0, stop - 1)  # the last judged cell stays, as a neighbour
        self._held = self._held[kept * self._cell :]
        self._first += kept * self._cell
        self._judged = stop - kept


class Repeats:
    """Finds stretches of samples that occurred before."""

    def __init__(self, grid: FrameGrid) -> None:
        self.n_compared = self.n_repeated = 0
        self.first: tuple[int, int] | None = None
        self._length = round(REPEAT_S * grid.sample_rate_hz)
        self._shift = np.uint32(32 - max(1, round(np.log2(grid.sample_rate_hz / _ANCHORS_PER_S))))
        self._seen: dict[bytes, int] = {}
        self._held = np.zeros(0, np.float32)
        self._first_held = 0

    def add(self, block: Block) -> None:
        """Compare every stretch that lies wholly in what has been read."""
        self._held = np.concatenate([self._held, _samples(block).astype(np.float32)])
        n_starts = len(self._held) - self._length + 1
        if n_starts <= 0:
            return
        bits = self._held.view(np.uint32)
        mixed = (bits[:n_starts] * _MIX[0]) ^ (bits[1 : n_starts + 1] * _MIX[1])
        mixed = (mixed ^ (mixed >> _HALF_WORD)) * _MIX[0]  # samples stored in 16 bits have empty low bits
        chosen = (mixed >> self._shift == 0) & (bits[:n_starts] != bits[1 : n_starts + 1])
        for start in np.flatnonzero(chosen):
            self._compare(self._held[start : start + self._length], self._first_held + int(start))
        self._held = self._held[n_starts:]
        self._first_held += n_starts

    def _compare(self, stretch: np.ndarray, sample: int) -> None:
        power = float(np.mean(np.square(stretch, dtype=np.float64)))
        if not power >= 10.0 ** (GATE_DB / 10.0):  # too quiet, or with a bad sample
            return
        self.n_compared += 1
        digest = hashlib.blake2b(stretch.tobytes(), digest_size=8).digest()
        if digest not in self._seen:
            self._seen[digest] = sample
            return
        self.n_repeated += 1
        if self.first is None:
            self.first = sample, self._seen[digest]

    @property
    def fraction(self) -> float:
        """Repeated over compared stretches; NaN where none could be compared."""
        return self.n_repeated / self.n_compared if self.n_compared else float("nan")


class Loops:
    """Scores windows of 20 s for periodic content."""

    def __init__(self, grid: FrameGrid) -> None:
        self.scores: list[float] = []
        self.lags_s: list[float] = []
        self._hop_samples = grid.hop_samples
        self._hop_s = grid.hop_samples / grid.sample_rate_hz
        self.window_samples = round(LOOP_WINDOW_S * grid.sample_rate_hz)
        self._held: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, block: Block) -> None:
        """Take the frames of a block, and score the windows that they complete."""
        starts = (block.first_frame + np.arange(len(block.half_of_frame))) * self._hop_samples
        windows = starts // self.window_samples
        used = block.spectra.active[0] & block.outside_silence(0)
        shape = block.spectra.cepstra[0][:, 1:]
        for window in range(len(self.scores), int(windows[-1]) + 1 if len(windows) else 0):
            mine = windows == window
            self._held.append((shape[mine], used[mine]))
            if window < windows[-1]:
                self._score()

    def finish(self) -> None:
        """Score a last window of half its length or more."""
        if sum(len(used) for _, used in self._held) * self._hop_samples >= self.window_samples / 2:
            self._score()

    def _score(self) -> None:
        shape = np.concatenate([part for part, _ in self._held])
        used = np.concatenate([part for _, part in self._held])
        lags = round(LOOP_LAGS_S[0] / self._hop_s), round(LOOP_LAGS_S[1] / self._hop_s)
        score, lag = loop_score_of(shape, used, lags=lags)
        self.scores.append(score)
        self.lags_s.append(lag * self._hop_s)
        self._held = []

    @property
    def worst(self) -> float:
        """Largest score of a window; NaN where none has one."""
        defined = [score for score in self.scores if not np.isnan(score)]
        return max(defined) if defined else float("nan")


def loop_score_of(features: np.ndarray, used: np.ndarray, *, lags: tuple[int, int]) -> tuple[float, float]:
    """Largest normalised autocorrelation of vectors over time, and its lag."""
    n_frames = len(used)
    longest = min(lags[1], n_frames - 1)
    if used.sum() < _LEAST_ACTIVE * n_frames or longest < lags[0]:
        return float("nan"), float("nan")
    centred = np.where(used[:, None], features - features[used].mean(axis=0), 0.0)
    n_fft = scipy.fft.next_fast_len(2 * n_frames, real=True)
    spectrum = scipy.fft.rfft(centred, n_fft, axis=0)
    power = (np.square(spectrum.real) + np.square(spectrum.imag)).sum(axis=1)
    lag = np.arange(lags[0], longest + 1)
    correlation = scipy.fft.irfft(power, n_fft)[lag]
    energy = np.concatenate([[0.0], np.cumsum(np.square(centred).sum(axis=1))])
    overlap = np.sqrt(np.maximum(energy[n_frames - lag] * (energy[-1] - energy[lag]), 0.0))
    if not energy[-1] > 0.0:
        return float("nan"), float("nan")
    score = np.divide(correlation, overlap, out=np.zeros(len(lag)), where=overlap > 1e-9 * energy[-1])
    best = int(np.argmax(score))
    return float(score[best]), float(lag[best])


def jumps_per_min(signal: np.ndarray, *, sample_rate_hz: int) -> float:
    """Jumps in the samples, per minute.

    Parameters
    ----------
    signal : np.ndarray, shape (n_samples,)
    sample_rate_hz : int

    Returns
    -------
    float
        Cells of 10 ms with a jump; 0 is no proof that there is none.

    Raises
    ------
    ParameterError
        Unusable signal, shorter than a frame, or a sample is not finite.
    """
    source = _checked_source(signal, sample_rate_hz)
    jumps = Jumps(FrameGrid(source.sample_rate_hz, source.n_samples))
    for _, block in blocks([source]):
        jumps.add(block)
    jumps.finish()
    return len(jumps.starts) / (source.n_samples / source.sample_rate_hz / 60.0)


def repeat_fraction(signal: np.ndarray, *, sample_rate_hz: int) -> float:
    """Fraction of stretches of 50 ms that occurred before, sample for sample.

    Parameters and errors as in :func:`jumps_per_min`, and

    Raises
    ------
    UndefinedMetricError
        No stretch reaches −60 dB re full scale.
    """
    source = _checked_source(signal, sample_rate_hz)
    repeats = Repeats(FrameGrid(source.sample_rate_hz, source.n_samples))
    for _, block in blocks([source]):
        repeats.add(block)
    if np.isnan(repeats.fraction):
        raise UndefinedMetricError("no stretch of the signal reaches −60 dB re full scale; repeats have no value")
    return repeats.fraction


def loop_score(signal: np.ndarray, *, sample_rate_hz: int, floor: float = FLOOR) -> float:
    """Largest loop score of a window of 20 s: 1 for an exact loop of 0.3 to 8 s, under 0.2 for speech.

    Parameters
    ----------
    signal : np.ndarray, shape (n_samples,)
        10 s or more.
    sample_rate_hz : int
    floor : float
        Smallest band power that a logarithm sees.

    Raises
    ------
    ParameterError
        Unusable signal, shorter than a frame, or a sample is not finite.
    UndefinedMetricError
        Shorter than half a window, or no window has enough active frames.
    """
    source = _checked_source(signal, sample_rate_hz)
    loops = Loops(FrameGrid(source.sample_rate_hz, source.n_samples))
    for _, block in blocks([source], floor=floor):
        loops.add(block)
    loops.finish()
    if np.isnan(loops.worst):
        raise UndefinedMetricError("no window of 10 s or more with a quarter of it active; a loop has no score")
    return loops.worst


def _checked_source(signal: np.ndarray, sample_rate_hz: int) -> ArraySource:
    source = ArraySource(signal, sample_rate_hz=sample_rate_hz, name="signal")
    refuse_bad_samples(source)
    return source
