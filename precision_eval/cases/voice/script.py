"""Phoneme scripts: what a voice says, frame by frame.

Conventions: 50 frames per second; a script is phoneme-aligned, so audio made from one script stays aligned in time with
every other audio made from it, for hours, even where the tokens differ. That is what keeps aligned audio metrics
meaningful after a divergence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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

    def __getitem__(self, frames: slice | np.ndarray) -> Conditioning:
        return Conditioning(self.phoneme[frames], self.next_phoneme[frames], self.progress[frames])


def conditioning_from_lengths(phoneme_ids: np.ndarray, lengths: np.ndarray) -> Conditioning:
    """Expand phonemes and their lengths in frames to per-frame inputs."""
    phoneme_ids, lengths = phoneme_ids.astype(np.int64), lengths.astype(np.int64)
    ends = np.cumsum(lengths)
    within = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
    remaining = np.repeat(lengths, lengths) - within
    following = np.concatenate([phoneme_ids[1:], phoneme_ids[-1:]])
    progress = np.stack(
        [within / np.repeat(lengths, lengths), 1 - np.exp(-remaining / _REMAINING_SCALE_FRAMES)], axis=1
    )
    return Conditioning(np.repeat(phoneme_ids, lengths), np.repeat(following, lengths), progress.astype(np.float32))
