"""Log-mel frames to a waveform: a small network for the magnitudes, Griffin-Lim in blocks for the phases.

Several streams of equal length may be spoken at once: whatever they are, ``...``, then stands before the axis of time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import scipy.fft

from precision_eval.cases.voice.assets import StoredTensors
from precision_eval.cases.voice.codec import HOP_SAMPLES, N_MELS, hann

SPECTRA_PER_FRAME = 2
SPECTRUM_HOP_SAMPLES = HOP_SAMPLES // SPECTRA_PER_FRAME
SPECTRUM_SAMPLES = 640
N_BINS = SPECTRUM_SAMPLES // 2 + 1
CONTEXT_FRAMES = 3  # mel frames on either side that the network sees
SILENT_MAGNITUDE = 1e-4  # 80 dB below a full-scale sine: the floor of what the network learned, taken off again

BLOCK_FRAMES = 24
LOOK_AHEAD_FRAMES = 4
ITERATIONS = 32
MOMENTUM = 0.99
SEED = 0

_SLABS = SPECTRUM_SAMPLES // SPECTRUM_HOP_SAMPLES  # hops that a spectrum covers


@dataclass(frozen=True, eq=False)
class MagnitudeNetwork(StoredTensors):
    """Map from a window of log-mel frames to the magnitudes of the centre frame's two spectra."""

    def magnitudes(self, windows: np.ndarray) -> np.ndarray:
        """Magnitudes of windows of frames."""
        used = self._single
        hidden = (windows - used["input_mean"]) / used["input_scale"]
        for layer in range(2):
            hidden = np.maximum(hidden @ used[f"weight_{layer}"] + used[f"bias_{layer}"], 0)
        logarithms = hidden @ used["weight_2"] + used["bias_2"] + used["output_mean"]
        return np.maximum(np.exp(logarithms) - np.float32(SILENT_MAGNITUDE), 0).reshape(-1, N_BINS)

    def magnitudes_between(self, frames: np.ndarray) -> np.ndarray:
        """Magnitudes of all frames that have their context."""
        windows = np.lib.stride_tricks.sliding_window_view(frames, 2 * CONTEXT_FRAMES + 1, axis=-2).swapaxes(-1, -2)
        magnitudes = self.magnitudes(windows.reshape(-1, windows.shape[-1] * windows.shape[-2]))
        return magnitudes.reshape(*frames.shape[:-2], -1, N_BINS)


@cache
def load_network() -> MagnitudeNetwork:
    """The shipped network."""
    return MagnitudeNetwork.load("vocoder.safetensors")


class PhaseRecovery:
    """Griffin-Lim with momentum on one block of spectra after another, the past held fixed."""

    def __init__(self, *, iterations: int, momentum: float, seed: int, streams: tuple[int, ...] = ()) -> None:
        self._iterations = iterations
        self._weight = np.float32(momentum / (1 + momentum))
        self._rng = np.random.default_rng(seed)
        self._window = hann(SPECTRUM_SAMPLES).astype(np.float32)
        self._scale = np.float32(hann(SPECTRUM_SAMPLES).sum() / 2)  # of a full-scale sine's peak
        self._squares = np.square(self._window).reshape(_SLABS, SPECTRUM_HOP_SAMPLES)
        self._floor = np.float32(1e-2) * self._squares.max()
        self._streams, tail = streams, (_SLABS - 1, SPECTRUM_HOP_SAMPLES)
        self._tail = np.zeros((*streams, *tail), dtype=np.float32)  # spoken spectra, beyond the edge
        self._tail_weight = np.zeros(tail, dtype=np.float32)
        self._carried = np.empty((*streams, 0, N_BINS), dtype=np.complex64)  # phases that the look-ahead reached

    def speak(self, magnitude: np.ndarray, n_spoken: int) -> np.ndarray:
        """Find phases for a block and its look-ahead, and speak the block."""
        magnitude = magnitude * self._scale
        spectra = magnitude * self._starting_phases(magnitude.shape[-2])
        weight = self._overlap_weights(magnitude.shape[-2])
        before: np.ndarray | None = None
        for _ in range(self._iterations):
            signal = self._overlap_add(self._slabs(spectra))
            signal /= weight
            joined = signal.reshape(*self._streams, -1)
            frames = np.lib.stride_tricks.sliding_window_view(joined, SPECTRUM_SAMPLES, axis=-1)
            projected = scipy.fft.rfft(frames[..., ::SPECTRUM_HOP_SAMPLES, :] * self._window)
            spectra = projected.copy() if before is None else projected - self._weight * before
            before = projected
            spectra *= magnitude / np.maximum(np.abs(spectra), np.float32(1e-12))
        self._carried = _phasors(spectra[..., n_spoken:, :])
        total = self._overlap_add(self._slabs(spectra[..., :n_spoken, :]))
        weight = self._overlap_weights(n_spoken, floored=False)
        self._tail, self._tail_weight = total[..., n_spoken:, :].copy(), weight[n_spoken:].copy()
        spoken = total[..., :n_spoken, :] / np.maximum(weight[:n_spoken], self._floor)
        return spoken.reshape(*self._streams, -1)

    def rest(self) -> np.ndarray:
        """What spoken spectra hold beyond the last spoken sample, shape (..., 480), float32."""
        return (self._tail / np.maximum(self._tail_weight, self._floor)).reshape(*self._streams, -1)

    def _starting_phases(self, n_spectra: int) -> np.ndarray:
        """Unit phasors: those carried over, then random ones, the same for every stream."""
        carried = self._carried[..., :n_spectra, :]
        turns = self._rng.random((n_spectra - carried.shape[-2], N_BINS), dtype=np.float32)
        fresh = np.exp(np.complex64(2j * np.pi) * turns)
        return np.concatenate([carried, np.broadcast_to(fresh, (*self._streams, *fresh.shape))], axis=-2)

    def _slabs(self, spectra: np.ndarray) -> np.ndarray:
        """Windowed signals of spectra, cut into hops: (..., n_spectra, _SLABS, 160)."""
        frames = scipy.fft.irfft(spectra, n=SPECTRUM_SAMPLES)
        frames *= self._window
        return frames.reshape(*spectra.shape[:-1], _SLABS, SPECTRUM_HOP_SAMPLES)

    def _overlap_add(self, slabs: np.ndarray) -> np.ndarray:
        """Sum of overlapping signals on top of what is spoken already: (..., n_spectra + _SLABS - 1, 160)."""
        n_spectra = slabs.shape[-3]
        total = np.zeros((*self._streams, n_spectra + _SLABS - 1, SPECTRUM_HOP_SAMPLES), dtype=np.float32)
        total[..., : _SLABS - 1, :] = self._tail
        for slab in range(_SLABS):
            total[..., slab : slab + n_spectra, :] += slabs[..., slab, :]
        return total

    def _overlap_weights(self, n_spectra: int, *, floored: bool = True) -> np.ndarray:
        """Sum of squared windows under each sample, of the shape of one stream's sum of signals."""
        total = np.zeros((n_spectra + _SLABS - 1, SPECTRUM_HOP_SAMPLES), dtype=np.float32)
        total[: _SLABS - 1] = self._tail_weight
        for slab in range(_SLABS):
            total[slab : slab + n_spectra] += self._squares[slab]
        return np.maximum(total, self._floor) if floored else total


def _phasors(spectra: np.ndarray) -> np.ndarray:
    """Spectra with magnitude 1 (1 where a spectrum is zero)."""
    magnitude = np.abs(spectra)
    return np.where(magnitude > 0, spectra / np.maximum(magnitude, np.float32(1e-30)), np.complex64(1))


class StreamingVocoder:
    """Speaks log-mel frames as they come."""

    def __init__(self, network: MagnitudeNetwork | None = None, *, streams: tuple[int, ...] = ()) -> None:
        self._network = load_network() if network is None else network
        self._phases = PhaseRecovery(iterations=ITERATIONS, momentum=MOMENTUM, seed=SEED, streams=streams)
        self._shape = (*streams, 0, N_MELS)
        self._frames = np.empty(self._shape, dtype=np.float32)  # context before the next block, then what is not spoken
        self._unwanted = SPECTRUM_SAMPLES // 2 - SPECTRUM_HOP_SAMPLES // 2  # samples before sample 0, still to drop

    def push(self, mel: np.ndarray) -> np.ndarray:
        """Take frames and give the samples that they complete."""
        if mel.shape[-2] and not self._frames.shape[-2]:
            self._frames = np.repeat(mel[..., :1, :].astype(np.float32), CONTEXT_FRAMES, axis=-2)
        self._frames = np.concatenate([self._frames, mel.astype(np.float32)], axis=-2)
        needed = CONTEXT_FRAMES + BLOCK_FRAMES + LOOK_AHEAD_FRAMES + CONTEXT_FRAMES
        spoken = []
        while self._frames.shape[-2] >= needed:
            spoken.append(self._speak(self._frames[..., :needed, :], BLOCK_FRAMES))
            self._frames = self._frames[..., BLOCK_FRAMES:, :]
        self._frames = self._frames.copy()  # lets go of a long push
        return self._kept(spoken)

    def flush(self) -> np.ndarray:
        """End the stream and give its last samples."""
        frames = self._frames
        spoken: list[np.ndarray] = []
        if not frames.shape[-2]:
            return self._kept(spoken)
        frames = np.concatenate([frames, np.repeat(frames[..., -1:, :], CONTEXT_FRAMES, axis=-2)], axis=-2)
        while (left := frames.shape[-2] - 2 * CONTEXT_FRAMES) > 0:
            looked_at = min(left, BLOCK_FRAMES + LOOK_AHEAD_FRAMES)
            spoken.append(self._speak(frames[..., : looked_at + 2 * CONTEXT_FRAMES, :], min(left, BLOCK_FRAMES)))
            frames = frames[..., BLOCK_FRAMES:, :]
        self._frames = np.empty(self._shape, dtype=np.float32)
        spoken.append(self._phases.rest()[..., : SPECTRUM_SAMPLES // 2 - SPECTRUM_HOP_SAMPLES // 2])
        return self._kept(spoken)

    def _speak(self, frames: np.ndarray, n_spoken: int) -> np.ndarray:
        """Samples of the first ``n_spoken`` frames after the context."""
        return self._phases.speak(self._network.magnitudes_between(frames), n_spoken * SPECTRA_PER_FRAME)

    def _kept(self, spoken: list[np.ndarray]) -> np.ndarray:
        """Join samples, less those before sample 0."""
        samples = np.concatenate([np.empty((*self._shape[:-2], 0), dtype=np.float32), *spoken], axis=-1)
        dropped = min(self._unwanted, samples.shape[-1])
        self._unwanted -= dropped
        return samples[..., dropped:]


def vocode(mel: np.ndarray, *, network: MagnitudeNetwork | None = None) -> np.ndarray:
    """Speak a whole sequence, or several, (..., frames, 80): the streaming vocoder run over everything."""
    stream = StreamingVocoder(network, streams=np.shape(mel)[:-2])
    return np.concatenate([stream.push(mel), stream.flush()], axis=-1)
