"""The voice's codec: log-mel frames and their residual vector quantisation."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import scipy.fft
from safetensors import safe_open
from safetensors.numpy import save_file

from precision_eval.core.errors import IntegrityError, ParameterError

FRAMES_PER_BLOCK = 2048


def inner_products(tables: np.ndarray) -> np.ndarray:
    """Inner products of all entries with each other."""
    n_codebooks, size, n_bands = tables.shape
    flat = tables.reshape(-1, n_bands)
    return (flat @ flat.T).reshape(n_codebooks, size, n_codebooks, size)


def beam_search(vectors: np.ndarray, tables: np.ndarray, products: np.ndarray, *, beam: int) -> np.ndarray:
    """Find the best sums of entries, one table after the other, keeping the ``beam`` best partial sums."""
    n, (n_codebooks, size, _) = vectors.shape[0], tables.shape
    rows = np.arange(n)[:, None]
    cost = np.zeros((n, 1), dtype=np.float32)
    paths = np.empty((n, 1, 0), dtype=np.int64)
    for level in range(n_codebooks):
        own = np.diag(products[level, :, level, :]) - 2 * (vectors @ tables[level].T)  # (n, size)
        extended = cost[:, :, None] + own[:, None, :]  # (n, kept, size)
        for earlier in range(level):
            extended += 2 * products[earlier, :, level, :][paths[:, :, earlier]]
        flat = extended.reshape(n, -1)
        kept = 1 if level == n_codebooks - 1 else min(beam, flat.shape[1])
        best = np.argmin(flat, axis=1)[:, None] if kept == 1 else np.argpartition(flat, kept - 1, axis=1)[:, :kept]
        best.sort(axis=1)  # an order that does not depend on the partition
        cost = flat[rows, best]
        paths = np.concatenate([paths[rows, best // size], (best % size)[:, :, None]], axis=2)
    return paths[:, 0].astype(np.uint8)


SAMPLE_RATE_HZ = 16_000
HOP_SAMPLES = 320
FRAME_RATE_HZ = 50
N_MELS = 80
N_CODEBOOKS = 4
CODEBOOK_SIZE = 256

WINDOW_SAMPLES = 1024
LOG_FLOOR = float(np.log(3e-4))  # 70 dB below a full-scale sine
BEAM = 8
ASSETS = Path(__file__).parent / "data"


def hann(n: int) -> np.ndarray:
    """Periodic Hann window."""
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n) / n)


def _mel_to_hz(mel: np.ndarray) -> np.ndarray:
    """Slaney's scale: linear to 1 kHz (15 mels), then 27 mels to each factor of 6.4."""
    return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp(np.log(6.4) / 27 * (mel - 15)))


@cache
def mel_filters() -> np.ndarray:
    """Triangular bands from 0 Hz to the Nyquist frequency on Slaney's mel scale."""
    nyquist_hz = SAMPLE_RATE_HZ / 2
    top_mel = 15 + 27 * np.log(nyquist_hz / 1000) / np.log(6.4)
    edges_hz = _mel_to_hz(np.linspace(0, top_mel, N_MELS + 2))
    bins_hz = np.linspace(0, nyquist_hz, WINDOW_SAMPLES // 2 + 1)
    ramps = edges_hz[:, None] - bins_hz[None, :]  # (N_MELS + 2, n_bins)
    width_hz = np.diff(edges_hz)[:, None]
    weights = np.maximum(0, np.minimum(-ramps[:-2] / width_hz[:-1], ramps[2:] / width_hz[1:]))
    filters = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    filters.flags.writeable = False
    return filters


def framed(
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
    frames = framed(
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


def mel_distortion_db(estimate: np.ndarray, reference: np.ndarray) -> float:
    """Root mean square difference of two log-mel sequences."""
    if estimate.shape != reference.shape:
        raise ParameterError(f"mels have shapes {estimate.shape} and {reference.shape}; expected equal shapes")
    squares = np.square(estimate.astype(np.float64) - reference).mean(axis=1)
    return float(np.sqrt(squares).mean() * 20 / np.log(10))


@dataclass(frozen=True, eq=False)
class Codec:
    """Additive vector quantiser of log-mel frames."""

    tables: np.ndarray
    mean: np.ndarray
    metadata: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.tables.ndim != 3 or self.mean.shape != self.tables.shape[2:] or self.tables.shape[1] > 256:
            raise ParameterError(
                f"tables have shape {self.tables.shape} and mean {self.mean.shape}; expected (codebooks, at most 256, "
                "bands) and (bands,)"
            )

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

    def encode(self, mel: np.ndarray, *, beam: int = BEAM) -> np.ndarray:
        """Tokens of log-mel frames, each frame by itself."""
        mel = np.asarray(mel)
        if mel.ndim != 2 or mel.shape[1] != self.mean.size or not np.isfinite(mel).all():
            raise ParameterError(
                f"mel has shape {mel.shape}; expected finite values of shape (frames, {self.mean.size})"
            )
        if beam < 1:
            raise ParameterError(f"beam is {beam}; expected at least 1")
        centred = mel.astype(np.float32) - self.mean
        tokens = np.empty((mel.shape[0], self.tables.shape[0]), dtype=np.uint8)
        products = inner_products(self.tables)
        for start in range(0, mel.shape[0], FRAMES_PER_BLOCK):
            block = slice(start, start + FRAMES_PER_BLOCK)
            tokens[block] = beam_search(centred[block], self.tables, products, beam=beam)
        return tokens

    def save(self, path: Path) -> None:
        """Write tables, mean and metadata as one safetensors file."""
        save_file({"tables": self.tables, "mean": self.mean}, str(path), metadata=self.metadata)

    @classmethod
    def load(cls, path: Path) -> Codec:
        """Read what :meth:`save` wrote."""
        if not path.is_file():
            raise IntegrityError(f"no codec at {path.name}; expected the shipped tables: reinstall the package")
        with safe_open(str(path), framework="numpy") as stored:
            names = set(stored.keys())
            if names != {"tables", "mean"}:
                raise IntegrityError(f"{path.name} holds {sorted(names)}; expected mean and tables")
            metadata = dict(stored.metadata() or {})
            return cls(stored.get_tensor("tables"), stored.get_tensor("mean"), metadata)


@cache
def load_codec() -> Codec:
    """The shipped codec."""
    return Codec.load(ASSETS / "codec.safetensors")
