"""Power spectra of some frames, and what derives from them.

Conventions: see :mod:`audio_metrics.frames`, which makes them. Arrays with one value per bin lie in a
:class:`~audio_metrics.workspace.Workspace` and are overwritten with it; arrays with fewer values are new ones.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cached_property

import numpy as np

from audio_metrics.mel import MelBands, product
from audio_metrics.sums import row_sums
from audio_metrics.workspace import Workspace

FLOOR = 1e-10
"""Smallest power that a logarithm sees: −100 dB re full scale."""

GATE_DB = -60.0
"""A frame is active where its windowed mean square is at least this many dB re full scale. Absolute, so that no frame
depends on another."""


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
