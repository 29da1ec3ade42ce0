"""CPU time of the fused pass against its floor and its peers.

Conventions: CPU seconds of this process (``time.process_time``), one thread.
A *floor* is what an implementation on a library of transforms cannot go below: read both files in the same blocks,
window and transform every frame, with ``scipy.fft`` in the same pieces or with ``torch.stft``, and throw it away. Peers
get tensors that are in memory already, without gradients; ``compare`` gets arrays where it stands beside them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import scipy.fft
import soundfile

from audio_metrics import compare, compare_files
from audio_metrics.frames import BLOCK_WINDOWS, PIECE_FRAMES, FrameGrid
from precision_eval.core.errors import UnsupportedError
from validation.audio.ratio import Ratio, ratio_of

Call = Callable[[], object]


def paired(candidates: dict[str, Call], *, rounds: int, seed: int = 0) -> dict[str, np.ndarray]:
    """CPU seconds of each candidate in each round, shape (rounds,); one round to warm up is not counted."""
    order = random.Random(seed)
    found: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(rounds + 1):
        names = list(candidates)
        order.shuffle(names)
        for name in names:
            start_s = time.process_time()
            candidates[name]()
            if number:
                found[name].append(time.process_time() - start_s)
    return {name: np.array(values) for name, values in found.items()}


def floor_pass(paths: tuple[Path, Path], transform: Callable[[np.ndarray, FrameGrid], object]) -> None:
    """Read a pair in the blocks of the fused pass, have every block transformed, and no more."""
    with soundfile.SoundFile(paths[0]) as first, soundfile.SoundFile(paths[1]) as second:
        grid = FrameGrid(first.samplerate, first.frames)
        step, overlap = BLOCK_WINDOWS * grid.window_samples, grid.frame_samples - 1
        for start in range(0, grid.n_samples - overlap, step):
            for file in (first, second):
                file.seek(start)
                transform(file.read(min(step + overlap, grid.n_samples - start), dtype="float32"), grid)


def _by_scipy(samples: np.ndarray, grid: FrameGrid) -> None:
    taper, tapered = _taper(grid.frame_samples)
    views = np.lib.stride_tricks.sliding_window_view(samples, grid.frame_samples)[:: grid.hop_samples]
    for index in range(0, len(views), PIECE_FRAMES):
        piece = views[index : index + PIECE_FRAMES]
        scipy.fft.rfft(np.multiply(piece, taper, out=tapered[: len(piece)]), axis=-1)


@cache
def _taper(frame: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a Hann window and room for a piece of frames that it is laid over."""
    taper = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(frame) / frame)).astype(np.float32)
    return taper, np.empty((PIECE_FRAMES, frame), np.float32)


def _by_torch(samples: np.ndarray, grid: FrameGrid) -> None:
    """The faster of the two."""
    import torch

    torch.set_num_threads(1)
    frame, taper = grid.frame_samples, torch.hann_window(grid.frame_samples)
    with torch.no_grad():
        torch.stft(torch.from_numpy(samples), frame, grid.hop_samples, window=taper, center=False, return_complex=True)


def against_floor(paths: tuple[Path, Path], *, rounds: int, label: str) -> list[Ratio]:
    """The fused pass over two files against the floor."""
    floors = {"scipy.fft": lambda: floor_pass(paths, _by_scipy), "torch.stft": lambda: floor_pass(paths, _by_torch)}
    seconds = paired({"pass": lambda: compare_files(*paths), **floors}, rounds=rounds)
    return [
        ratio_of(
            seconds["pass"],
            seconds[name],
            name=f"fused pass ÷ {name} + I/O floor, {label} pair",
            most=2.5,
            note=f"floor {1e3 * float(np.median(seconds[name])):.1f} ms CPU",
        )
        for name in floors
    ]


def against_peers(
    paths: tuple[Path, Path], *, rounds: int, label: str, targets: Mapping[str, float | None]
) -> list[Ratio]:
    """``compare`` on arrays against auraloss and torchmetrics on tensors."""
    import torch

    torch.set_num_threads(1)
    reference, estimate = (soundfile.read(path, dtype="float32")[0] for path in paths)
    rate = soundfile.info(paths[0]).samplerate
    calls = {name: _peer(name, reference, estimate) for name in targets}
    calls["compare"] = lambda: compare(reference, estimate, sample_rate_hz=rate)
    with torch.no_grad():
        seconds = paired(calls, rounds=rounds)
    return [
        ratio_of(
            seconds["compare"],
            seconds[name],
            name=f"compare ÷ {_PEERS[name]}, {label} pair",
            most=most,
            note=f"peer {float(np.median(seconds[name])):.3g} s CPU",
        )
        for name, most in targets.items()
    ]


_PEERS = {"STFTLoss": "auraloss STFTLoss", "MR-STFT": "auraloss MR-STFT", "SI-SDR": "torchmetrics SI-SDR float64"}


def _peer(name: str, reference: np.ndarray, estimate: np.ndarray) -> Call:
    import torch

    try:
        import auraloss
        from torchmetrics.functional.audio import scale_invariant_signal_distortion_ratio
    except ImportError as error:
        raise UnsupportedError(f"{error.name} is not installed; pip install -e '.[bench]' brings the peers") from error

    target, preds = (torch.from_numpy(x)[None, None] for x in (reference, estimate))
    if name == "SI-SDR":
        return lambda: scale_invariant_signal_distortion_ratio(preds[0, 0].double(), target[0, 0].double())
    loss = auraloss.freq.STFTLoss() if name == "STFTLoss" else auraloss.freq.MultiResolutionSTFTLoss()
    return lambda: loss(preds, target)


def one_hour(paths: tuple[Path, Path]) -> list[Ratio]:
    """CPU seconds of a pair of one hour, the median of three passes."""
    seconds = paired({"pass": lambda: compare_files(*paths)}, rounds=3)["pass"]
    return [
        Ratio(
            name="fused pass, 1 h pair, CPU time",
            value=float(np.median(seconds)),
            low=float(seconds.min()),
            high=float(seconds.max()),
            most=3.0,
            rounds=len(seconds),
            unit="s",
        )
    ]
