"""First divergence of voice streams: survival per fix, and its prediction from teacher-forced logits alone.

Two kinds of trial. *Hazards*: a fix is given the original speech of the calibration windows, and at every step the
closed-form chance that its error changes a sampled token is taken from its logits and float64's. *Streams*: the
held-out streams run on from their prompts, and each one's first step away from the reference's tokens is recorded, or
that there was none. The first kind predicts the second; nothing is fitted to either. A *step* is one decode step after
the prompt, counted from 0; a stream that differs at step s leaves at time ``s + 1``, one that never differs is censored
at the last step. A *group* is one checkpoint at one temperature.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from validation.divergence.plan import BIN_STEPS, DESIGNS, PROMPT_FRAMES, SEED, Design, Group
from validation.frame import Data, Experiment, Figure, Options, Trial

if TYPE_CHECKING:
    from precision_eval.cases.voice.synthesis import Decoder
    from validation.divergence.running import Voices


def _trials(options: Options) -> list[Trial]:
    """Each group's hazards, then its streams chunk by chunk, so that what shares a reference follows each other."""
    design, found = DESIGNS[options.size], []
    for group in design.groups:
        stem = f"{options.size}/{group.name}"
        for condition in group.steps:
            if condition != "noise_floor":  # another noise, not another logit
                found.append(Trial(f"{stem}/hazards/{condition}", (group, None, condition)))
        for chunk in range(design.n_streams // design.chunk_streams):
            found += [Trial(f"{stem}/streams{chunk}/{name}", (group, chunk, name)) for name in group.steps]
    return found


def _run(trials: Iterator[Trial], options: Options) -> Iterator[Data]:
    runner = Runner(DESIGNS[options.size])
    for key, (group, chunk, condition), _ in trials:
        found = runner.hazards(group, condition) if chunk is None else runner.streams(group, chunk, condition)
        yield {"key": key, "size": options.size, "group": group.name, "fix": condition, **found}


class Runner:
    """Runs trials; what several share (the voices, the reference's logits and path) is made once in a row."""

    def __init__(self, design: Design) -> None:
        self.design = design
        self.voices = lru_cache(maxsize=1)(self._voices)
        self.true_logits = lru_cache(maxsize=1)(self._true_logits)
        self.path = lru_cache(maxsize=1)(self._path)

    def hazards(self, group: Group, condition: str) -> Data:
        """Teacher-force the calibration windows."""
        from validation.divergence.running import forced_logits

        voices, n_steps = self.voices(None), self.design.calibration_steps
        truth = self.true_logits(group.checkpoint_dtype)
        with _opened(condition, voices, n_steps, group.checkpoint_dtype) as decoder:
            logits = forced_logits(decoder, voices, n_steps=n_steps)
            return _scored(logits, truth, temperature=group.temperature)

    def streams(self, group: Group, chunk: int, condition: str) -> Data:
        """Run a chunk of held-out streams until every one has left the reference's path."""
        from precision_eval.cases.voice.conditions import noise_seed
        from validation.divergence.running import first_divergence, gumbel_noise

        seed, voices, n_steps = SEED + chunk, self.voices(chunk), group.steps[condition]
        path = self.path(chunk, group.checkpoint_dtype, group.temperature, max(group.steps.values()))
        noise = gumbel_noise(noise_seed(condition, seed), len(voices))
        with _opened(condition, voices, n_steps, group.checkpoint_dtype) as decoder:
            first = first_divergence(decoder, voices, noise, path, n_steps=n_steps, temperature=group.temperature)
        return {"kind": "streams", "seed": seed, "steps": n_steps, "first": first.tolist()}

    def _voices(self, chunk: int | None) -> Voices:
        """The speech of a trial: the calibration windows, or a chunk of held-out streams."""
        from validation.divergence.running import Voices, load_voices

        longest = max(max(group.steps.values()) for group in self.design.groups)
        calibration, held_out = load_voices(self.design, n_steps=longest)
        size = self.design.chunk_streams
        chosen = calibration if chunk is None else held_out[chunk * size : (chunk + 1) * size]
        return Voices.of(chosen, n_frames=len(chosen[0].tokens))

    def _true_logits(self, checkpoint_dtype: str) -> list[np.ndarray]:
        from validation.divergence.running import forced_logits

        voices, n_steps = self.voices(None), self.design.calibration_steps
        with _opened("reference", voices, n_steps, checkpoint_dtype) as decoder:
            return list(forced_logits(decoder, voices, n_steps=n_steps))

    def _path(self, chunk: int, checkpoint_dtype: str, temperature: float, n_steps: int) -> Any:
        from validation.divergence.running import gumbel_noise, reference_path

        voices = self.voices(chunk)
        noise = gumbel_noise(SEED + chunk, len(voices))
        with _opened("reference", voices, n_steps, checkpoint_dtype) as decoder:
            return reference_path(decoder, voices, noise, n_steps=n_steps, temperature=temperature)


def _opened(condition: str, voices: Voices, n_steps: int, checkpoint_dtype: str) -> AbstractContextManager[Decoder]:
    """The voice in a condition, with a ring no longer than the run."""
    from precision_eval.cases.voice.conditions import opened

    n_frames = PROMPT_FRAMES + n_steps
    return opened(condition, n_streams=len(voices), n_frames=n_frames, checkpoint_dtype=checkpoint_dtype)


def _scored(logits: Iterable[np.ndarray], truth: list[np.ndarray], *, temperature: float) -> Data:
    """Hazards of one condition, and the flip rate of the most likely token beside them."""
    from validation.divergence.prediction import binned, mismatch_probability, step_hazards

    mismatch, flips = [], []
    for candidate, reference in zip(logits, truth, strict=True):
        mismatch.append(mismatch_probability(reference, candidate, temperature=temperature))
        flips.append((candidate.argmax(-1) != reference.argmax(-1)).any(axis=-1))
    per_bin = binned(step_hazards(np.stack(mismatch)))
    return {
        "kind": "hazards",
        "steps": len(truth),
        "bin_steps": BIN_STEPS,
        "hazard": [[float(f"{value:.3e}") for value in stream] for stream in per_bin],
        "greedy_flips_per_step": round(float(np.mean(flips)), 6),
    }


def _figures(lines: list[Data]) -> list[Figure]:
    from validation.divergence.analysis import analyse, figures_of

    result = analyse(lines)
    return [] if result is None else figures_of(result)


def _plots(lines: list[Data], out: Path) -> list[Path]:
    from validation.divergence.analysis import analyse
    from validation.divergence.plots import draw

    result = analyse(lines)
    return [] if result is None else draw(result, out)


EXPERIMENT = Experiment(
    name="divergence",
    title="first divergence, and its prediction from margins",
    trials=_trials,
    run=_run,
    figures=_figures,
    plots=_plots,
)
