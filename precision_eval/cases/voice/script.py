"""Phoneme scripts: what a voice says, frame by frame.

Conventions: 50 frames per second; a script is phoneme-aligned, so audio made from one script stays aligned in time with
every other audio made from it, for hours, even where the tokens differ. That is what keeps aligned audio metrics
meaningful after a divergence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from precision_eval.core.errors import ParameterError

N_PROGRESS_FEATURES = 2
_REMAINING_SCALE_FRAMES = 10.0  # 0.2 s: the time constant of "time remaining", about two phonemes


@dataclass(frozen=True)
class Conditioning:
    """What the model is told about each frame."""

    phoneme: np.ndarray
    next_phoneme: np.ndarray
    progress: np.ndarray

    def __len__(self) -> int:
        return len(self.phoneme)

    def __getitem__(self, frames: slice) -> Conditioning:
        return Conditioning(self.phoneme[frames], self.next_phoneme[frames], self.progress[frames])


def conditioning_from_segments(segments: np.ndarray) -> Conditioning:
    """Expand phoneme segments to per-frame inputs."""
    segments = np.asarray(segments)
    if segments.ndim != 2 or segments.shape[1] != 3 or len(segments) == 0:
        raise ParameterError(f"segments must have shape (n ≥ 1, 3), found {segments.shape}")
    phoneme_ids, starts, ends = segments.astype(np.int64).T
    if starts[0] != 0 or np.any(starts[1:] != ends[:-1]) or np.any(ends <= starts):
        raise ParameterError(
            "segments must start at frame 0 and follow each other without gap, overlap or empty segment"
        )
    lengths = ends - starts
    within = np.arange(ends[-1]) - np.repeat(starts, lengths)
    remaining = np.repeat(lengths, lengths) - within
    following = np.concatenate([phoneme_ids[1:], phoneme_ids[-1:]])
    progress = np.stack(
        [within / np.repeat(lengths, lengths), 1 - np.exp(-remaining / _REMAINING_SCALE_FRAMES)], axis=1
    )
    return Conditioning(np.repeat(phoneme_ids, lengths), np.repeat(following, lengths), progress.astype(np.float32))


def conditioning_from_lengths(phoneme_ids: np.ndarray, lengths: np.ndarray) -> Conditioning:
    """The same from phonemes and their lengths in frames, as the shipped scripts store them."""
    ends = np.cumsum(lengths.astype(np.int64))
    return conditioning_from_segments(np.stack([phoneme_ids.astype(np.int64), ends - lengths, ends], axis=1))
