"""The voice's part of the divergence experiment: streams that run on until they leave the reference's path.

B streams, K codebooks, V codes. A *path* holds the tokens as they are emitted, (n_steps, B, K); in the
first K − 1 steps the delayed codebooks still emit the prompt. Until its first difference a stream has emitted exactly
the reference's tokens, so a fix is run on the reference's path and each stream is dropped at its first difference:
what comes after it decides nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from precision_eval.cases.voice.assets import load_streams
from precision_eval.cases.voice.codec import CODEBOOK_SIZE, N_CODEBOOKS
from precision_eval.cases.voice.synthesis import Decoder, Frames, GumbelNoise, Stream, stacked, teacher_forced_inputs
from validation.divergence.plan import N_SPEAKERS, PROMPT_FRAMES, Design, window_starts


@dataclass(frozen=True)
class Voices:
    """Streams of equal length, ready to be stepped through."""

    given: Tensor
    frames: Frames

    @classmethod
    def of(cls, streams: list[Stream], *, n_frames: int) -> Voices:
        """Gather ``n_frames`` frames of each stream."""
        given = teacher_forced_inputs(streams, n_frames=n_frames, empty=CODEBOOK_SIZE)
        return cls(given, stacked([stream.conditioning[:n_frames] for stream in streams]))

    def __len__(self) -> int:
        return len(self.given)

    def prefill(self, decoder: Decoder) -> None:
        """Read the prompt, all at once."""
        decoder.step(self.given[:, :PROMPT_FRAMES], self.frames.rows(0, PROMPT_FRAMES))

    def prompt_at(self, step: int) -> Tensor:
        """Tokens that the delayed codebooks emit at a step from inside the prompt, (B, K − 1 − step)."""
        return self.given[:, PROMPT_FRAMES + step + 1, step + 1 :]


def load_voices(design: Design, *, n_steps: int) -> tuple[list[Stream], list[Stream]]:
    """Return the calibration windows and the held-out streams, speakers in turn."""
    stream_frames = PROMPT_FRAMES + n_steps + N_CODEBOOKS
    window_frames = PROMPT_FRAMES + design.calibration_steps
    rounds = (_empty(design.segments), _empty(design.segments * design.held_out))
    for script in load_streams(N_SPEAKERS, n_frames=1):
        starts = window_starts(len(script.tokens), design, stream_frames=stream_frames)
        for turns, places, length in zip(rounds, starts, (window_frames, stream_frames), strict=True):
            for turn, start in zip(turns, places, strict=True):
                rows = slice(start, start + length)
                turn.append(Stream(script.conditioning[rows], script.tokens[rows]))
    calibration, held_out = ([stream for turn in turns for stream in turn] for turns in rounds)
    return calibration, held_out


def _empty(count: int) -> list[list[Stream]]:
    return [[] for _ in range(count)]


def gumbel_noise(seed: int, n_streams: int) -> GumbelNoise:
    """The sampling noise of so many streams."""
    return GumbelNoise(seed, n_streams, (N_CODEBOOKS, CODEBOOK_SIZE))


def _sampled(logits: Tensor, noise: Tensor, *, temperature: float) -> Tensor:
    """Tokens by the Gumbel-max trick in float64, as :func:`precision_eval.cases.voice.synthesis.free_run` samples."""
    return (logits.double() / temperature + noise).argmax(dim=-1)


@torch.inference_mode()
def reference_path(decoder: Decoder, voices: Voices, noise: GumbelNoise, *, n_steps: int, temperature: float) -> Tensor:
    """Run the reference freely."""
    voices.prefill(decoder)
    given = voices.given[:, PROMPT_FRAMES]
    path = []
    for step in range(n_steps):
        frame = PROMPT_FRAMES + step
        logits = decoder.step(given[:, None], voices.frames.rows(frame, 1))[:, 0]
        given = _sampled(logits, noise(frame), temperature=temperature)
        if step < N_CODEBOOKS - 1:
            given[:, step + 1 :] = voices.prompt_at(step)
        path.append(given)
    return torch.stack(path)


@torch.inference_mode()
def first_divergence(
    decoder: Decoder, voices: Voices, noise: GumbelNoise, path: Tensor, *, n_steps: int, temperature: float
) -> np.ndarray:
    """Step at which each stream first samples another token than the reference."""
    voices.prefill(decoder)
    first = np.full(len(voices), -1)
    alive = torch.arange(len(voices))
    given = voices.given[:, PROMPT_FRAMES]
    for step in range(n_steps):
        frame = PROMPT_FRAMES + step
        rows = Frames(*(values[alive] for values in voices.frames.rows(frame, 1)))
        logits = decoder.step(given[alive][:, None], rows)[:, 0]
        tokens = _sampled(logits, noise(frame)[alive], temperature=temperature)
        free = min(step + 1, N_CODEBOOKS)  # the other codebooks are still inside the prompt
        same = (tokens[:, :free] == path[step, alive, :free]).all(dim=1)
        if not bool(same.all()):
            first[alive[~same].numpy()] = step
            alive = alive[same]
            if not len(alive):
                break
            decoder.keep(same)
        given = path[step]
    return first


@torch.inference_mode()
def forced_logits(decoder: Decoder, voices: Voices, *, n_steps: int) -> Iterator[np.ndarray]:
    """Score the original speech after the prompt, step by step."""
    voices.prefill(decoder)
    for step in range(n_steps):
        frame = PROMPT_FRAMES + step
        logits = decoder.step(voices.given[:, frame : frame + 1], voices.frames.rows(frame, 1))[:, 0]
        yield logits.double().numpy()
