"""The voice's part of the divergence experiment: streams that run on until they leave the reference's path.

B streams, K codebooks, V codes. A *path* holds the tokens as they are emitted, (n_steps, B, K); in the
first K − 1 steps the delayed codebooks still emit the prompt. Until its first difference a stream has emitted exactly
the reference's tokens, so a fix is run on the reference's path and each stream is dropped at its first difference:
what comes after it decides nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from precision_eval.cases.voice.assets import load_streams
from precision_eval.cases.voice.codec import CODEBOOK_SIZE, N_CODEBOOKS
from precision_eval.cases.voice.conditions import noise_seed, open_voice
from precision_eval.cases.voice.synthesis import (
    Decoder,
    Frames,
    GumbelNoise,
    Stream,
    stack_frames,
    teacher_forced_inputs,
)
from validation.divergence.plan import BIN_STEPS, N_SPEAKERS, PROMPT_FRAMES, SEED, Design, Group, window_starts
from validation.divergence.prediction import binned, mismatch_probability, step_hazards


@dataclass(frozen=True)
class Voices:
    """Streams of equal length, ready to be stepped through."""

    given: Tensor
    frames: Frames

    @classmethod
    def of(cls, streams: list[Stream], *, n_frames: int) -> Voices:
        given = teacher_forced_inputs(streams, n_frames=n_frames, empty=CODEBOOK_SIZE)
        return cls(given, stack_frames([stream.conditioning[:n_frames] for stream in streams]))

    def __len__(self) -> int:
        return len(self.given)

    def prefill(self, decoder: Decoder) -> None:
        decoder.step(self.given[:, :PROMPT_FRAMES], self.frames.rows(0, PROMPT_FRAMES))

    def prompt_at(self, step: int) -> Tensor:
        """Tokens that the delayed codebooks emit at a step from inside the prompt, (B, K − 1 − step)."""
        return self.given[:, PROMPT_FRAMES + step + 1, step + 1 :]


def load_voices(design: Design) -> tuple[list[Stream], list[Stream]]:
    """Return the calibration windows and the held-out streams, speakers in turn."""
    stream_frames = PROMPT_FRAMES + design.longest + N_CODEBOOKS
    scripts = load_streams(N_SPEAKERS, n_frames=1)
    starts = [window_starts(len(script.tokens), design, stream_frames=stream_frames) for script in scripts]

    def cut(turns: list[list[int]], length: int) -> list[Stream]:
        return [
            Stream(script.conditioning[start : start + length], script.tokens[start : start + length])
            for turn in zip(*turns, strict=True)
            for script, start in zip(scripts, turn, strict=True)
        ]

    windows, held_out = ([pair[i] for pair in starts] for i in (0, 1))
    return cut(windows, PROMPT_FRAMES + design.calibration_steps), cut(held_out, stream_frames)


def gumbel_noise(seed: int, n_streams: int) -> GumbelNoise:
    return GumbelNoise(seed, n_streams, (N_CODEBOOKS, CODEBOOK_SIZE))


def _sampled(logits: Tensor, noise: Tensor, *, temperature: float) -> Tensor:
    """Tokens by the Gumbel-max trick in float64, as :func:`precision_eval.cases.voice.synthesis.free_run` samples."""
    return (logits.double() / temperature + noise).argmax(dim=-1)


@torch.inference_mode()
def reference_path(decoder: Decoder, voices: Voices, noise: GumbelNoise, *, n_steps: int, temperature: float) -> Tensor:
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
            _keep(decoder, same)
        given = path[step]
    return first


def _keep(decoder: Decoder, streams: Tensor) -> None:
    """Go on with some of the streams; the others' caches are dropped."""
    rows = streams.to(decoder.device)
    for attention in decoder.attentions:
        attention.key_cache, attention.value_cache = attention.key_cache[rows], attention.value_cache[rows]


@torch.inference_mode()
def forced_logits(decoder: Decoder, voices: Voices, *, n_steps: int) -> Iterator[np.ndarray]:
    """Score the original speech after the prompt, step by step."""
    voices.prefill(decoder)
    for step in range(n_steps):
        frame = PROMPT_FRAMES + step
        logits = decoder.step(voices.given[:, frame : frame + 1], voices.frames.rows(frame, 1))[:, 0]
        yield logits.double().numpy()


class Runner:
    """Runs trials; what several share (the voices, the reference's logits and path) is made once in a row."""

    def __init__(self, design: Design) -> None:
        self.design = design
        self.voices = lru_cache(maxsize=1)(self._voices)
        self.true_logits = lru_cache(maxsize=1)(self._true_logits)
        self.path = lru_cache(maxsize=1)(self._path)

    def hazards(self, group: Group, condition: str) -> dict[str, Any]:
        """Teacher-force the calibration windows: the hazard of every step."""
        truth = self.true_logits(group.checkpoint_dtype)
        mismatch = [
            mismatch_probability(reference, candidate, temperature=group.temperature)
            for candidate, reference in zip(self._logits(condition, group.checkpoint_dtype), truth, strict=True)
        ]
        hazard = [[float(f"{h:.3e}") for h in stream] for stream in binned(step_hazards(np.stack(mismatch)))]
        return {"kind": "hazards", "steps": len(truth), "bin_steps": BIN_STEPS, "hazard": hazard}

    def streams(self, group: Group, chunk: int, condition: str) -> dict[str, Any]:
        """Run a chunk of held-out streams until every one has left the reference's path."""
        seed, voices, n_steps = SEED + chunk, self.voices(chunk), group.steps[condition]
        path = self.path(chunk, group.checkpoint_dtype, group.temperature, max(group.steps.values()))
        noise = gumbel_noise(noise_seed(condition, seed), len(voices))
        with _opened(condition, voices, n_steps, group.checkpoint_dtype) as decoder:
            first = first_divergence(decoder, voices, noise, path, n_steps=n_steps, temperature=group.temperature)
        return {"kind": "streams", "seed": seed, "steps": n_steps, "first": first.tolist()}

    def _voices(self, chunk: int | None) -> Voices:
        """The speech of a trial: the calibration windows, or a chunk of held-out streams."""
        calibration, held_out = load_voices(self.design)
        size = self.design.chunk_streams
        chosen = calibration if chunk is None else held_out[chunk * size : (chunk + 1) * size]
        return Voices.of(chosen, n_frames=len(chosen[0].tokens))

    def _logits(self, condition: str, checkpoint_dtype: str) -> Iterator[np.ndarray]:
        voices, n_steps = self.voices(None), self.design.calibration_steps
        with _opened(condition, voices, n_steps, checkpoint_dtype) as decoder:
            yield from forced_logits(decoder, voices, n_steps=n_steps)

    def _true_logits(self, checkpoint_dtype: str) -> list[np.ndarray]:
        return list(self._logits("reference", checkpoint_dtype))

    def _path(self, chunk: int, checkpoint_dtype: str, temperature: float, n_steps: int) -> Tensor:
        voices = self.voices(chunk)
        noise = gumbel_noise(SEED + chunk, len(voices))
        with _opened("reference", voices, n_steps, checkpoint_dtype) as decoder:
            return reference_path(decoder, voices, noise, n_steps=n_steps, temperature=temperature)


def _opened(condition: str, voices: Voices, n_steps: int, checkpoint_dtype: str) -> AbstractContextManager[Decoder]:
    """The voice in a condition, with a ring no longer than the run."""
    n_frames = PROMPT_FRAMES + n_steps
    return open_voice(condition, n_streams=len(voices), n_frames=n_frames, checkpoint_dtype=checkpoint_dtype)
