"""The voice's codec: log-mel frames, and the frames that its tokens stand for; training encodes speech to tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import scipy.fft

from audio_metrics.spectra import mel_filter_bank
from precision_eval.cases.voice.assets import StoredTensors
from precision_eval.core.errors import ParameterError

FRAMES_PER_BLOCK = 2048

SAMPLE_RATE_HZ = 16_000
HOP_SAMPLES = 320
FRAME_RATE_HZ = 50
N_MELS = 80
N_CODEBOOKS = 4
CODEBOOK_SIZE = 256

WINDOW_SAMPLES = 1024
LOG_FLOOR = float(np.log(3e-4))  # 70 dB below a full-scale sine


def hann(n: int) -> np.ndarray:
    """Periodic Hann window."""
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n) / n)


@cache
def mel_filters() -> np.ndarray:
    """Triangular bands from 0 Hz to the Nyquist frequency on Slaney's mel scale, each with a sum of one."""
    bank = mel_filter_bank(SAMPLE_RATE_HZ, WINDOW_SAMPLES, N_MELS)
    filters = (bank / bank.sum(axis=1, keepdims=True)).astype(np.float32)
    filters.flags.writeable = False
    return filters


def cut_frames(
    audio: np.ndarray, *, window_samples: int, hop_samples: int, offset_samples: int, n_frames: int
) -> np.ndarray:
    """Cut overlapping frames, with zeros outside the recording."""
    before = max(0, window_samples // 2 - offset_samples)
    skipped = max(0, offset_samples - window_samples // 2)
    needed = (n_frames - 1) * hop_samples + window_samples
    tail = audio[skipped:]
    padded = np.zeros(max(needed, before + tail.size, window_samples), dtype=np.float32)
    padded[before : before + tail.size] = tail
    return np.lib.stride_tricks.sliding_window_view(padded, window_samples)[::hop_samples][:n_frames]


def log_mel(audio: np.ndarray) -> np.ndarray:
    """Log-mel frames of a recording."""
    audio = np.asarray(audio)
    if audio.ndim != 1 or not np.issubdtype(audio.dtype, np.floating):
        raise ParameterError(f"audio has shape {audio.shape} and dtype {audio.dtype}; expected mono floating samples")
    if not np.isfinite(audio).all():
        raise ParameterError("audio has a sample that is not finite; expected finite samples")
    n_frames = audio.size // HOP_SAMPLES
    mel = np.empty((n_frames, N_MELS), dtype=np.float32)
    if n_frames == 0:
        return mel
    frames = cut_frames(
        audio,
        window_samples=WINDOW_SAMPLES,
        hop_samples=HOP_SAMPLES,
        offset_samples=HOP_SAMPLES // 2,
        n_frames=n_frames,
    )
    window = hann(WINDOW_SAMPLES)
    window = (window * (2 / window.sum())).astype(np.float32)  # a full-scale sine peaks at 1
    filters = mel_filters().T  # (n_bins, N_MELS)
    for start in range(0, n_frames, FRAMES_PER_BLOCK):
        block = frames[start : start + FRAMES_PER_BLOCK] * window
        magnitude = np.abs(scipy.fft.rfft(block, axis=1))  # (block, n_bins)
        mel[start : start + block.shape[0]] = np.log(np.maximum(magnitude @ filters, np.exp(np.float32(LOG_FLOOR))))
    return mel


@dataclass(frozen=True, eq=False)
class Codec(StoredTensors):
    """Additive vector quantiser of log-mel frames."""

    @property
    def tables(self) -> np.ndarray:
        """Entries, shape (codebooks, size, bands)."""
        return self.tensors["tables"]

    @property
    def mean(self) -> np.ndarray:
        """Frame that the entries add to, shape (bands,)."""
        return self.tensors["mean"]

    def decode(self, tokens: np.ndarray) -> np.ndarray:
        """Log-mel frames of tokens."""
        tokens = np.asarray(tokens)
        n_codebooks, size, _ = self.tables.shape
        if tokens.ndim != 2 or tokens.shape[1] != n_codebooks or not np.issubdtype(tokens.dtype, np.integer):
            raise ParameterError(
                f"tokens have shape {tokens.shape} and dtype {tokens.dtype}; expected integers of shape "
                f"(frames, {n_codebooks})"
            )
        if tokens.size and (tokens.min() < 0 or tokens.max() >= size):
            raise ParameterError(f"tokens span {tokens.min()} to {tokens.max()}; expected 0 to {size - 1}")
        mel = np.broadcast_to(self.mean, (tokens.shape[0], self.mean.size)).copy()
        for level in range(n_codebooks):
            mel += self.tables[level][tokens[:, level]]
        return np.maximum(mel, np.float32(LOG_FLOOR))


@cache
def load_codec() -> Codec:
    """The shipped codec."""
    return Codec.load("codec.safetensors")
