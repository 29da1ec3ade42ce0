"""Power spectra of some frames, what derives from them (mel bands, cepstra), and the arithmetic underneath.

Conventions: see :mod:`audio_metrics.frames`, which makes them. Arrays with one value per bin lie in a
:class:`Workspace` and are overwritten with it; arrays with fewer values are new ones. Mel bands: Slaney's scale (linear
to 1 kHz, logarithmic above) and area normalisation, 80 bands from 0 Hz to half the sample rate; cepstra: orthonormal
DCT-II, c0 to c24. The tables are written out because the import of librosa alone would cost more than measuring ten
minutes of audio. Sums are in float64 and in pieces: OpenBLAS starts threads for a dot product of more than 10,000
numbers, which costs more processor time than it saves and makes bits depend on their number.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, lru_cache

import numpy as np


class Workspace:
    """Named arrays, made larger when they have to be; what one held before is lost when it is asked for again."""

    # Fresh memory in every block would cost a fifth of the processor time of the whole pass, in page faults.

    def __init__(self) -> None:
        self._held: dict[str, np.ndarray] = {}
        self._shaped: dict[tuple[str, tuple[int, ...], np.dtype], np.ndarray] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
        """The array of that name as one of that shape and dtype, always the same for a name; values are undefined."""
        dtype = np.dtype(dtype)
        found = self._shaped.get((name, shape, dtype))
        if found is not None:
            return found
        size = math.prod(shape)
        held = self._held.get(name)
        if held is None or held.size < size or held.dtype != dtype:
            held = self._held[name] = np.empty(size, dtype)
            self._shaped = {key: array for key, array in self._shaped.items() if key[0] != name}
        result = self._shaped[name, shape, dtype] = held[:size].reshape(shape)
        return result

    def wide(self, name: str, values: np.ndarray) -> np.ndarray:
        """The values in float64 in the array of that name; themselves where they are float64 and contiguous."""
        if values.dtype == np.float64 and values.flags.c_contiguous:
            return values
        result = self.array(name, values.shape, np.float64)
        np.copyto(result, values)
        return result


_PIECE = 8192


def inner_product(first: np.ndarray, second: np.ndarray) -> float:
    total = 0.0
    for start in range(0, len(first), _PIECE):
        total += float(np.dot(first[start : start + _PIECE], second[start : start + _PIECE]))
    return total


def row_products(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    if first.shape[-1] > _PIECE:
        head, tail = (values[..., :_PIECE] for values in (first, second)), (first[..., _PIECE:], second[..., _PIECE:])
        return np.asarray(row_products(*head) + row_products(*tail))
    return np.asarray(np.matmul(first[..., None, :], second[..., :, None])[..., 0, 0])  # one dot product a row


def row_sums(values: np.ndarray) -> np.ndarray:
    return row_products(values, _ones(values.shape[-1]))


@lru_cache(maxsize=8)
def _ones(n: int) -> np.ndarray:
    return np.ones(n)


N_MELS = 80
N_CEPSTRA = 25  # c0 to c24

_HZ_PER_LINEAR_MEL = 200.0 / 3.0
_LOG_START_HZ = 1000.0
_LOG_START_MEL = _LOG_START_HZ / _HZ_PER_LINEAR_MEL
_LOG_STEP = np.log(6.4) / 27.0
_BANDS_PER_GROUP = 8
_SMALL_PRODUCT = 250_000  # multiplications; OpenBLAS starts threads from 262,144


def _mel_to_hz(mel: np.ndarray) -> np.ndarray:
    log_part = _LOG_START_HZ * np.exp(_LOG_STEP * np.maximum(mel - _LOG_START_MEL, 0.0))
    return np.where(mel < _LOG_START_MEL, mel * _HZ_PER_LINEAR_MEL, log_part)


def _hz_to_mel(hz: float) -> float:
    if hz < _LOG_START_HZ:
        return hz / _HZ_PER_LINEAR_MEL
    return _LOG_START_MEL + float(np.log(hz / _LOG_START_HZ)) / _LOG_STEP


def mel_filter_bank(sample_rate_hz: int, n_fft: int, n_bands: int = N_MELS) -> np.ndarray:
    bin_hz = np.arange(n_fft // 2 + 1) * (sample_rate_hz / n_fft)
    edge_hz = _mel_to_hz(np.linspace(0.0, _hz_to_mel(sample_rate_hz / 2), n_bands + 2))
    step_hz = np.diff(edge_hz)
    ramp = edge_hz[:, None] - bin_hz[None, :]  # (M + 2, n_bins)
    rising = -ramp[:-2] / step_hz[:-1, None]
    falling = ramp[2:] / step_hz[1:, None]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return np.asarray(triangles * (2.0 / (edge_hz[2:] - edge_hz[:-2]))[:, None])


def cosine_basis(n_bands: int = N_MELS, n_coefficients: int = N_CEPSTRA) -> np.ndarray:
    """First rows of the orthonormal DCT-II over `n_bands` values, shape (n_coefficients, n_bands)."""
    angle = np.pi / n_bands * np.outer(np.arange(n_coefficients), np.arange(n_bands) + 0.5)
    basis = np.sqrt(2.0 / n_bands) * np.cos(angle)
    basis[0] = np.sqrt(1.0 / n_bands)
    return np.asarray(basis)


def product(rows: np.ndarray, matrix: np.ndarray, *, out: np.ndarray | None = None) -> np.ndarray:
    """Matrix product in pieces so small that BLAS starts no threads for them."""
    result = np.empty((*rows.shape[:-1], matrix.shape[1])) if out is None else out
    step = max(1, _SMALL_PRODUCT // matrix.size)
    for start in range(0, rows.shape[-2], step):
        piece = slice(start, start + step)
        np.matmul(rows[..., piece, :], matrix, out=result[..., piece, :])  # BLAS is called once per signal
    return result


class MelBands:
    """The filter bank cut into groups of neighbouring bands, each a product over the few bins it touches."""

    def __init__(self, sample_rate_hz: int, n_fft: int) -> None:
        bank = mel_filter_bank(sample_rate_hz, n_fft)
        self._groups: list[tuple[slice, slice, np.ndarray]] = []
        for first in range(0, N_MELS, _BANDS_PER_GROUP):
            bands = slice(first, first + _BANDS_PER_GROUP)
            touched = np.flatnonzero(bank[bands].any(axis=0))
            bins = slice(int(touched[0]), int(touched[-1]) + 1)
            self._groups.append((bands, bins, np.ascontiguousarray(bank[bands, bins].T)))

    def power(self, power: np.ndarray) -> np.ndarray:
        """Band power, shape (..., n, 80), of bin power, shape (..., n, n_bins), both float64."""
        bands_power = np.empty((*power.shape[:-1], N_MELS))
        for bands, bins, weights in self._groups:
            product(power[..., bins], weights, out=bands_power[..., bands])
        return bands_power


DB_PER_NEPER_OF_POWER = 10.0 / np.log(10.0)

FLOOR = 1e-10  # smallest power that a logarithm sees: −100 dB re full scale

# A frame is active where its windowed mean square is at least this many dB re full scale. Absolute, so that no frame
# depends on another.
GATE_DB = -60.0


class Spectra:
    """Power spectra of some frames of one or two signals; what derives from them is computed once."""

    def __init__(
        self,
        power: np.ndarray,
        *,
        floor: float,
        bands: MelBands,
        basis: np.ndarray,
        bin_hz: float,
        workspace: Workspace | None = None,
    ) -> None:
        self.power = power
        self.floor = floor
        self.bin_hz = bin_hz
        self.workspace = Workspace() if workspace is None else workspace
        self._bands = bands
        self._basis = basis

    def only(self, signal: int) -> Spectra:
        """Those of one signal, with what has been computed already."""
        part = slice(signal, signal + 1)
        result = Spectra(
            self.power[part],
            floor=self.floor,
            bands=self._bands,
            basis=self._basis,
            bin_hz=self.bin_hz,
            workspace=self.workspace,
        )
        for name in ("bin_sum", "floored_bins", "log_bands", "cepstra"):
            if name in vars(self):
                vars(result)[name] = vars(self)[name][part]
        return result

    @cached_property
    def wide_power(self) -> np.ndarray:
        """P in float64, for sums, shape (n_signals, n_frames, n_bins)."""
        return self.workspace.wide("wide_power", self.power)

    @cached_property
    def power_sum(self) -> np.ndarray:
        """Σ P over all frames, shape (n_signals, n_bins), float64."""
        return np.asarray(self.wide_power.sum(axis=1))

    @cached_property
    def floored_bins(self) -> np.ndarray:
        """Number of bins under the floor, shape (n_signals,)."""
        below = self.workspace.array("below", self.power.shape[1:], bool)
        floor = self.power.dtype.type(self.floor)
        return np.array([np.count_nonzero(np.less(signal, floor, out=below)) for signal in self.power])

    def _floored_power(self) -> np.ndarray:
        if not self.floored_bins.any():
            return self.power
        floored = self.workspace.array("floored", self.power.shape, self.power.dtype)
        # numbers that are not negative are in the order of their bits, which are five times as fast to compare
        bits = np.dtype(f"i{floored.itemsize}")
        floor = np.array(self.floor, floored.dtype).view(bits)
        np.maximum(self.power.view(bits), floor, out=floored.view(bits))
        return floored

    def _infinities(self) -> AbstractContextManager[object]:
        """Where a floor of 0 asks for infinities, they are no cause for a warning."""
        return nullcontext() if self.floor > 0.0 else np.errstate(divide="ignore", invalid="ignore")

    @cached_property
    def log_power(self) -> np.ndarray:
        """Natural log of max(P, floor), shape (n_signals, n_frames, n_bins)."""
        with self._infinities():
            return np.asarray(np.log(self._floored_power()))

    @cached_property
    def log_ratio(self) -> np.ndarray:
        """Natural log of P of the reference over that of the estimate, shape (n_frames, n_bins), float64."""
        with self._infinities():
            if self.floor < FLOOR and self.power.dtype == np.float32:  # the quotient could overflow
                return self.workspace.wide("log_ratio", self.log_power[0] - self.log_power[1])
            floored = self._floored_power()
            ratio = self.workspace.array("ratio", floored.shape[1:], floored.dtype)
            np.divide(floored[0], floored[1], out=ratio)
            return self.workspace.wide("log_ratio", np.log(ratio, out=ratio))

    @cached_property
    def bin_sum(self) -> np.ndarray:
        """Σ P over all bins, shape (n_signals, n_frames), float64."""
        return row_sums(self.wide_power)

    @cached_property
    def mean_square(self) -> np.ndarray:
        """Windowed mean square Σ (w·x)² / Σ w² by Parseval's theorem, shape (n_signals, n_frames), float64."""
        frame_samples = 2 * (self.power.shape[-1] - 1)
        ends = self.power[..., 0].astype(np.float64) + self.power[..., -1]
        return np.asarray((2.0 * self.bin_sum - ends) / frame_samples)

    @cached_property
    def active(self) -> np.ndarray:
        """Whether a frame reaches the absolute gate, shape (n_signals, n_frames)."""
        return np.asarray(self.mean_square >= 10.0 ** (GATE_DB / 10.0))

    @cached_property
    def log_bands(self) -> np.ndarray:
        """Natural log of max(band power, floor), shape (n_signals, n_frames, 80), float64."""
        band_power = self._bands.power(self.wide_power)
        np.maximum(band_power, self.floor, out=band_power)
        with self._infinities():
            return np.asarray(np.log(band_power, out=band_power))

    @cached_property
    def cepstra(self) -> np.ndarray:
        """Mel-cepstra c0 to c24 of ln band power (floored on the band), shape (n_signals, n_frames, 25), float64."""
        with self._infinities():
            return product(self.log_bands, self._basis.T)
