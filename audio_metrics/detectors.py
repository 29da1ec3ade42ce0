"""Faults that can be heard without a reference (jumps, clipping, exact repeats, loops), and dropouts of a pair.

Conventions: each detector takes the blocks of the shared pass in order and keeps what it needs across their borders,
so block size changes nothing. Samples that are not finite are measured around.

*Jump*: the largest fourth difference of the samples in a cell of 10 ms is more than 16 times the RMS of the others in
the cell and its neighbours. Clean speech stays under 15; a splice is found where it stands out of what is spoken, so
a count of 0 is no proof.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import scipy.fft

from audio_metrics.errors import UndefinedMetricError
from audio_metrics.flags import Flag
from audio_metrics.frames import FrameBlock, FrameGrid, blocks
from audio_metrics.signal import ArraySource, refuse_bad_samples
from audio_metrics.spectra import FLOOR, GATE_DB

JUMP_RATIO = 16.0
_JUMP_ORDER = 4
_STEPS_OF_A_JUMP = _JUMP_ORDER + 2  # one step makes five of them
_JUMP_CELL_S = 0.01
_JUMP_LEAST_SCALE = 1e-4  # under the rounding of 16-bit samples

REPEAT_S = 0.05
_ANCHORS_PER_S = 8.0
_MIX = np.array([0x9E3779B1, 0x85EBCA77], np.uint32)
_HALF_WORD = np.uint32(16)

LEAST_CLIPPED_RUNS = 2
_FLAT_SAMPLES = 3
_STEEP_EDGE = 2.5 / 32768.0  # the crest of a quiet tone in 16 bits is flat too, but falls by one step

_CELLS_PER_S = 400
_LOUD_CELL = 10.0**-4.5  # mean square
_LOST_CELL = 1e-7
_LOST_RATIO = 1e-3

_STUCK_S, _STUCK_STEP_S, _STUCK_PERIODS_S = 0.02, 0.1, (0.015, 0.4)
_STUCK_RUN = 3  # steps in a row with one period
_TONE = 0.99  # correlation with a shorter lag, above which a sound is periodic by itself

LOOP_WINDOW_S = 20.0
LOOP_LAGS_S = (0.3, 8.0)
LOOP_FLAG = 0.3
_LEAST_ACTIVE = 0.25


def _samples(block: FrameBlock) -> np.ndarray:
    samples = block.samples[0]
    return samples if block.bad[0] is None else np.where(block.bad[0], np.nan, samples)


class Jumps:
    def __init__(self, grid: FrameGrid) -> None:
        self.starts: list[int] = []
        self._cell = round(_JUMP_CELL_S * grid.sample_rate_hz)
        self._held = np.zeros(0)
        self._first = 0  # sample of held[0]
        self._latest = -2 * self._cell
        self._judged = 0  # cells at the start of held that have been judged

    def add(self, block: FrameBlock) -> None:
        """Judge every cell whose neighbours are known."""
        self._held = np.concatenate([self._held, _samples(block).astype(np.float64)])
        self._judge(last=False)

    def finish(self) -> None:
        self._judge(last=True)

    def _judge(self, *, last: bool) -> None:
        n_cells = max(0, len(self._held) - _JUMP_ORDER) // self._cell
        if n_cells == 0:
            return
        steps = np.abs(np.diff(self._held, n=_JUMP_ORDER)[: n_cells * self._cell]).reshape(n_cells, self._cell)
        stop = n_cells if last else n_cells - 1
        jumps = [cell for cell in _steep_cells(steps) if self._judged <= cell < stop and _is_jump(steps, cell)]
        for start in (self._first + cell * self._cell for cell in jumps):
            if start - self._latest > self._cell:  # a step on the border of two cells is one jump
                self.starts.append(start)
            self._latest = start
        kept = max(0, stop - 1)  # the last judged cell stays, as a neighbour
        self._held = self._held[kept * self._cell :]
        self._first += kept * self._cell
        self._judged = stop - kept


def _steep_cells(steps: np.ndarray) -> list[int]:
    """Cells that may hold a jump: those whose largest step is large against the energy of all but six like it."""
    largest = np.square(steps.max(axis=1))  # NaN where the cell holds a bad sample
    n_left = steps.shape[1] - _STEPS_OF_A_JUMP
    left = np.maximum(np.einsum("ij,ij->i", steps, steps) - _STEPS_OF_A_JUMP * largest, 0.0) / n_left
    least = np.maximum(left, _JUMP_LEAST_SCALE**2)
    return np.flatnonzero(largest > (1.0 - 1e-9) * JUMP_RATIO**2 * least).tolist()


def _is_jump(steps: np.ndarray, cell: int) -> bool:
    """Whether the largest step of a cell stands out of the others in it and in its neighbours."""
    around = np.sort(steps[max(0, cell - 1) : cell + 2], axis=1)[:, :-_STEPS_OF_A_JUMP]
    scale = np.sqrt(np.mean(np.square(around), axis=1)).max()  # NaN where many samples are bad: no jump
    return bool(steps[cell].max() > JUMP_RATIO * max(float(scale), _JUMP_LEAST_SCALE))


class Clipping:
    """Finds flat tops: three or more equal samples at the largest value of either sign, with steep edges."""

    def __init__(self) -> None:
        self.n_runs = 0
        self.level = 0.0
        self.first = 0
        self._tops = {1: 0.0, -1: 0.0}
        self._runs: dict[int, list[int]] = {1: [], -1: []}
        self._position = 0

    def add(self, block: FrameBlock, signal: int = 0) -> None:
        samples = block.samples[signal]
        for sign, top in ((1, float(samples.max())), (-1, -float(samples.min()))):
            if top <= 0.0 or top < self._tops[sign]:
                continue
            if top > self._tops[sign]:
                self._tops[sign], self._runs[sign] = top, []
            starts = _flat_tops(samples, sign * samples.dtype.type(top))
            self._runs[sign] += (self._position + starts).tolist()
        self._position += len(samples)
        sign = max((1, -1), key=lambda sign: len(self._runs[sign]))
        self.n_runs, self.level = len(self._runs[sign]), self._tops[sign]
        self.first = self._runs[sign][0] if self._runs[sign] else 0

    def flags(self, name: str, sample_rate_hz: int) -> Iterator[Flag]:
        if self.n_runs >= LEAST_CLIPPED_RUNS:
            message = f"{name} is clipped at {self.level:.3g}: {self.n_runs} flat tops"
            time_s = self.first / sample_rate_hz
            yield Flag(kind="clipped", signal=name, time_s=time_s, count=self.n_runs, message=message)


def _flat_tops(samples: np.ndarray, top: np.floating) -> np.ndarray:
    """Starts of runs of three or more samples of the value `top` that fall steeply on both sides."""
    at = np.flatnonzero(samples == top)
    if len(at) < _FLAT_SAMPLES:
        return np.zeros(0, int)
    breaks = np.flatnonzero(np.diff(at) > 1)
    starts, stops = at[np.append(0, breaks + 1)], at[np.append(breaks, len(at) - 1)] + 1
    inside = (stops - starts >= _FLAT_SAMPLES) & (starts > 0) & (stops < len(samples))
    starts, stops = starts[inside], stops[inside]
    fall = np.minimum(np.abs(samples[starts - 1] - top), np.abs(samples[stops] - top))
    return np.asarray(starts[fall > _STEEP_EDGE])


class Dropouts:
    """Finds cells of 2.5 ms in which the estimate falls silent while the reference goes on, where both agree around."""

    def __init__(self, grid: FrameGrid) -> None:
        self.starts: list[int] = []
        self._window = grid.window_samples
        self._cell = grid.window_samples // _CELLS_PER_S

    def add(self, block: FrameBlock) -> None:
        reference, estimate = block.samples
        for offset in range(0, len(reference), self._window):
            n_cells = min(self._window, len(reference) - offset) // self._cell
            part = slice(offset, offset + n_cells * self._cell)
            r, e = (samples[part].reshape(n_cells, self._cell) for samples in (reference, estimate))
            here, there = (np.einsum("ij,ij->i", x, x) / self._cell for x in (r, e))
            lost = (here >= _LOUD_CELL) & (there <= _LOST_CELL) & (there <= _LOST_RATIO * here)
            if not lost.any() or not there.any():
                continue  # whole windows of silence are told apart from dropouts
            apart = np.square(e[~lost] - r[~lost]).sum()
            if apart <= 0.5 * np.square(r[~lost]).sum():
                begins = np.flatnonzero(lost & ~np.append(False, lost[:-1]))
                first = block.first_window * self._window + offset
                self.starts += (first + begins * self._cell).tolist()

    def flags(self, sample_rate_hz: int) -> Iterator[Flag]:
        if self.starts:
            count = len(self.starts)
            message = f"estimate drops out {count} times where the reference goes on"
            time_s = self.starts[0] / sample_rate_hz
            yield Flag(kind="dropout", signal="estimate", time_s=time_s, count=count, message=message)


class Repeats:
    def __init__(self, grid: FrameGrid) -> None:
        self.n_compared = self.n_repeated = 0
        self.first: tuple[int, int] | None = None
        self._length = round(REPEAT_S * grid.sample_rate_hz)
        self._shift = np.uint32(32 - max(1, round(np.log2(grid.sample_rate_hz / _ANCHORS_PER_S))))
        self._seen: dict[bytes, int] = {}
        self._held = np.zeros(0, np.float32)
        self._first_held = 0

    def add(self, block: FrameBlock) -> None:
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
        power = float(np.dot(stretch, stretch)) / len(stretch)
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


class Stuck:
    """Finds a few milliseconds that are played again and again: equal bit for bit after 15 to 400 ms."""

    def __init__(self, grid: FrameGrid) -> None:
        self.runs: list[list[int]] = []  # first and last sample, and the period
        self._rate = grid.sample_rate_hz
        self._length, self._step, self._least, self._most = (
            round(seconds * self._rate) for seconds in (_STUCK_S, _STUCK_STEP_S, *_STUCK_PERIODS_S)
        )
        self._held = np.zeros(0)
        self._at = 0  # sample of held[0], a multiple of the step

    def add(self, block: FrameBlock) -> None:
        self._held = np.concatenate([self._held, _samples(block)])
        while len(self._held) >= self._most + self._length:
            if not self._goes_on():
                period = self._period()
                self.runs += [[self._at, self._at, period]] * (period > 0)
            self._held = self._held[self._step :]
            self._at += self._step

    def _goes_on(self) -> bool:
        """Whether the run of the step before goes on, in a silent part of its period too."""
        if not self.runs or self.runs[-1][1] != self._at - self._step:
            return False
        period = self.runs[-1][2]
        same = np.array_equal(self._held[period : period + self._length], self._held[: self._length])
        self.runs[-1][1] += self._step * (same and bool(self._held[:period].any()))
        return self.runs[-1][1] == self._at

    def _period(self) -> int:
        """After how many samples the first ones come again; 0 if never, if they are soft, or if they are a tone."""
        x, n = self._held, self._length
        first = x[:n]
        if not np.dot(first, first) >= n * 10.0 ** (GATE_DB / 10.0):
            return 0
        again = slice(self._least, self._most)
        at = self._least + np.flatnonzero((x[again] == x[0]) & (x[self._least + 1 : self._most + 1] == x[1]))
        for sample in (2, 3, n // 2, n - 1):  # leaves hardly one of the many that begin alike in 16 bits
            at = at[x[at + sample] == x[sample]]
        for period in at.tolist():
            if np.array_equal(x[period : period + n], first):
                turn = x[:period]
                shifted = np.lib.stride_tricks.sliding_window_view(x[: self._least + period], period)[n // 8 :]
                scale = np.sqrt(np.square(shifted).sum(axis=1) * np.dot(turn, turn))
                return 0 if (shifted @ turn > _TONE * scale).any() else period
        return 0

    def flags(self, name: str) -> Iterator[Flag]:
        runs = [run for run in self.runs if run[1] - run[0] >= (_STUCK_RUN - 1) * self._step]
        if runs:
            start, stop, period = runs[0]
            seconds = (stop - start + self._step + period) / self._rate
            message = f"{name} repeats {1e3 * period / self._rate:.3g} ms over {seconds:.1f} s"
            yield Flag(kind="stuck", signal=name, time_s=start / self._rate, count=len(runs), message=message)


class Loops:
    """Scores windows of 20 s for periodic content."""

    def __init__(self, grid: FrameGrid) -> None:
        self.scores: list[float] = []
        self.lags_s: list[float] = []
        self._hop_samples = grid.hop_samples
        self._hop_s = grid.hop_samples / grid.sample_rate_hz
        self.window_samples = round(LOOP_WINDOW_S * grid.sample_rate_hz)
        self._held: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, block: FrameBlock) -> None:
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
    """Largest normalized autocorrelation of vectors over time, and its lag."""
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
    AudioParameterError
        Unusable signal, shorter than a frame, or a sample is not finite.
    """
    jumps = _heard(Jumps, signal, sample_rate_hz)
    jumps.finish()
    return len(jumps.starts) / (len(signal) / sample_rate_hz / 60.0)


def repeat_fraction(signal: np.ndarray, *, sample_rate_hz: int) -> float:
    """Fraction of stretches of 50 ms that occurred before, sample for sample.

    Parameters and errors as in :func:`jumps_per_min`, and

    Raises
    ------
    UndefinedMetricError
        No stretch reaches −60 dB re full scale.
    """
    repeats = _heard(Repeats, signal, sample_rate_hz)
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
    AudioParameterError
        Unusable signal, shorter than a frame, or a sample is not finite.
    UndefinedMetricError
        Shorter than half a window, or no window has enough active frames.
    """
    loops = _heard(Loops, signal, sample_rate_hz, floor=floor)
    loops.finish()
    if np.isnan(loops.worst):
        raise UndefinedMetricError("no window of 10 s or more with a quarter of it active; a loop has no score")
    return loops.worst


_Detector = TypeVar("_Detector", Jumps, Repeats, Loops)


def _heard(kind: type[_Detector], signal: np.ndarray, sample_rate_hz: int, *, floor: float = FLOOR) -> _Detector:
    source = ArraySource(signal, sample_rate_hz=sample_rate_hz, name="signal")
    refuse_bad_samples(source)
    detector = kind(FrameGrid(source.sample_rate_hz, source.n_samples))
    for _, block in blocks([source], floor=floor):
        detector.add(block)
    return detector
