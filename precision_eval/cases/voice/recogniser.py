"""A small phoneme recogniser, and what it says of a synthesis: does the voice still say what the script says?

It names the phoneme of every frame (320 samples at 16 kHz) from the log-mels of that frame and of seven to either side.
It learned from other words and sentences than the voice and the evaluation, and runs in numpy, in float32, whatever
precision is being judged. Accuracy counts the frames that the script gives to
speech; silence is left out, because naming silence is no achievement.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from precision_eval.cases.voice.assets import StoredTensors
from precision_eval.cases.voice.codec import HOP_SAMPLES, WINDOW_SAMPLES, log_mel
from precision_eval.core.errors import ParameterError

SILENCE_ID = 0
KERNELS = (5, 5, 5, 3, 1)  # frames that each layer sees
CONTEXT_FRAMES = sum(kernel // 2 for kernel in KERNELS)
BLOCK_FRAMES = 2048
_MEL_HALO_FRAMES = -(-WINDOW_SAMPLES // 2 // HOP_SAMPLES)  # mels this close to a cut do not know their surroundings


@dataclass(frozen=True, eq=False)
class PhonemeAccuracy:
    """How much of a script was recognised in a recording."""

    value: float
    first_third: float
    last_third: float


@dataclass(frozen=True, eq=False)
class Recogniser(StoredTensors):
    """Five convolutions over log-mels with ReLU between them."""

    def scores(self, mel: np.ndarray) -> np.ndarray:
        """Unnormalised log-probabilities of the frames that have their whole context."""
        hidden = (mel.astype(np.float32) - self._single["input_mean"]) / self._single["input_scale"]
        for layer, kernel in enumerate(KERNELS):
            weight = self._single[f"weight_{layer}"]  # (kernel, inputs, outputs)
            n_out = hidden.shape[0] - kernel + 1
            total = np.tile(self._single[f"bias_{layer}"], (n_out, 1))
            for tap in range(kernel):
                total += hidden[tap : tap + n_out] @ weight[tap]
            hidden = total if layer == len(KERNELS) - 1 else np.maximum(total, 0)
        return hidden

    def recognise(self, audio: np.ndarray) -> np.ndarray:
        """Most probable phoneme of every frame, block by block: memory does not grow with the recording."""
        if audio.ndim != 1:
            raise ParameterError(f"audio has shape {audio.shape}; expected mono (n_samples,)")
        n_frames = audio.shape[0] // HOP_SAMPLES
        named = np.empty(n_frames, dtype=np.int32)
        for start in range(0, n_frames, BLOCK_FRAMES):
            end = min(start + BLOCK_FRAMES, n_frames)
            named[start:end] = self.scores(_mel_with_context(audio, start, end)).argmax(axis=1)
        return named

    def phoneme_accuracy(self, audio: np.ndarray, phonemes: np.ndarray) -> PhonemeAccuracy:
        """Compare what is heard with the phoneme that each frame should have been."""
        n_frames = audio.shape[0] // HOP_SAMPLES
        if len(phonemes) != n_frames:
            raise ParameterError(f"audio has {n_frames} frames and the script {len(phonemes)}; cut them to one length")
        right = self.recognise(audio) == phonemes
        is_speech = phonemes != SILENCE_ID
        third = n_frames // 3
        values = []
        for part in (slice(None), slice(0, third), slice(n_frames - third, None)):
            if not is_speech[part].any():
                raise ParameterError(f"a third of these {n_frames} frames has no speech in it; give a longer recording")
            values.append(float(right[part][is_speech[part]].mean()))
        return PhonemeAccuracy(*values)


def _mel_with_context(audio: np.ndarray, start: int, end: int) -> np.ndarray:
    """Log-mels of frames ``start`` to ``end`` and of their context; what lies outside the recording is silence."""
    n_frames = audio.shape[0] // HOP_SAMPLES
    wanted = max(start - CONTEXT_FRAMES, 0), min(end + CONTEXT_FRAMES, n_frames)
    begin = max(wanted[0] - _MEL_HALO_FRAMES, 0)
    samples = np.asarray(audio[begin * HOP_SAMPLES : (wanted[1] + _MEL_HALO_FRAMES) * HOP_SAMPLES])
    mel = log_mel(samples)[wanted[0] - begin : wanted[1] - begin]
    return pad_mel(mel, wanted[0] - start + CONTEXT_FRAMES, end + CONTEXT_FRAMES - wanted[1])


def pad_mel(mel: np.ndarray, before: int, after: int) -> np.ndarray:
    """Put frames of digital silence before and after log-mels of shape (n_frames, 80)."""
    silence = log_mel(np.zeros(HOP_SAMPLES, dtype=np.float32))  # (1, 80)
    return np.concatenate([np.repeat(silence, before, axis=0), mel, np.repeat(silence, after, axis=0)])
