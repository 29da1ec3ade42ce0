"""First divergence of voice streams: survival per fix, and its prediction from teacher-forced logits alone.

Two kinds of trial. *Hazards*: a fix is given the original speech of the calibration windows, and at every step the
closed-form chance that its error changes a sampled token is taken from its logits and float64's. *Streams*: the
held-out streams run on from their prompts, and each one's first step away from the reference's tokens is recorded,
or that there was none. The first kind predicts the second; nothing is fitted to either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from precision_eval.core.json_lines import TrialFile
from validation.catalog import Figure, Progress, Size
from validation.divergences.plan import BIN_STEPS, DESIGNS, PROMPT_FRAMES, SEED, TRIALS, Design, Group

if TYPE_CHECKING:
    from precision_eval.cases.voice.synthesis import Decoder
    from validation.divergences.running import Voices


@dataclass(frozen=True, kw_only=True)
class _Task:
    """Trials that share what is costly to make: one group's hazards, or one chunk of its streams."""

    group: Group
    chunk: int | None  # None: hazards
    keys: dict[str, str]  # condition → key


def run(out: Path, *, size: Size, progress: Progress) -> None:
    """Run the trials that are missing in ``out/divergence.jsonl``."""
    trials, design = TrialFile(out / TRIALS), DESIGNS[size]
    tasks = list(_tasks(size, design))
    known = trials.keys()
    total = sum(len(task.keys) for task in tasks)
    done = sum(key in known for task in tasks for key in task.keys.values())
    progress(done, total, "found")
    for task in tasks:
        missing = {condition: key for condition, key in task.keys.items() if key not in known}
        if not missing:
            continue
        measure = _hazards if task.chunk is None else _streams
        for condition, data in measure(task, design, list(missing)):
            trials.append({"key": missing[condition], "size": size, "group": task.group.name, "fix": condition} | data)
            done += 1
            progress(done, total, missing[condition])


def figures(out: Path) -> list[Figure]:
    """Make the figures from the trials alone; empty where there are none."""
    from validation.divergences.analysis import analyse
    from validation.divergences.summary import figures_of

    result = analyse(out)
    return [] if result is None else figures_of(result)


def plot(out: Path) -> list[Path]:
    """Draw ``out/divergence*.png`` from the trials alone."""
    from validation.divergences.analysis import analyse
    from validation.divergences.plots import draw

    result = analyse(out)
    return [] if result is None else draw(result, out)


def _tasks(size: Size, design: Design) -> Iterable[_Task]:
    for group in design.groups:
        stem = f"{size}/{group.name}"
        predicted = [
            condition for condition in group.steps if condition != "noise_floor"
        ]  # another noise, not another logit
        yield _Task(group=group, chunk=None, keys={c: f"{stem}/hazards/{c}" for c in predicted})
        for chunk in range(design.n_streams // design.chunk_streams):
            yield _Task(group=group, chunk=chunk, keys={c: f"{stem}/streams{chunk}/{c}" for c in group.steps})


def _hazards(task: _Task, design: Design, conditions: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Teacher-force the calibration windows under the reference and each condition."""
    from validation.divergences.running import forced_logits

    voices, n_steps = _voices(task, design), design.calibration_steps
    with _opened("reference", voices, n_steps, task.group) as decoder:
        truth = list(forced_logits(decoder, voices, n_steps=n_steps))
    for condition in conditions:
        with _opened(condition, voices, n_steps, task.group) as decoder:
            logits = forced_logits(decoder, voices, n_steps=n_steps)
            yield condition, _scored(logits, truth, temperature=task.group.temperature)


def _scored(logits: Iterable[np.ndarray], truth: list[np.ndarray], *, temperature: float) -> dict[str, Any]:
    """Hazards of one condition, and the flip rate of the most likely token beside them."""
    from validation.divergences.hazard import mismatch_probability
    from validation.divergences.prediction import binned, step_hazards

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


def _streams(task: _Task, design: Design, conditions: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run a chunk of held-out streams under the reference, and under each condition until every stream has left it."""
    from precision_eval.cases.voice.codec import CODEBOOK_SIZE, N_CODEBOOKS
    from precision_eval.cases.voice.conditions import noise_seed
    from precision_eval.cases.voice.synthesis import GumbelNoise
    from validation.divergences.running import first_divergence, reference_path

    voices, group = _voices(task, design), task.group
    seed, longest = SEED + (task.chunk or 0), max(group.steps[condition] for condition in conditions)
    shape = (N_CODEBOOKS, CODEBOOK_SIZE)
    noise = GumbelNoise(seed, len(voices), shape)
    with _opened("reference", voices, longest, group) as decoder:
        path = reference_path(decoder, voices, noise, n_steps=longest, temperature=group.temperature)
    for condition in conditions:
        own, n_steps = GumbelNoise(noise_seed(condition, seed), len(voices), shape), group.steps[condition]
        with _opened(condition, voices, n_steps, group) as decoder:
            first = first_divergence(decoder, voices, own, path, n_steps=n_steps, temperature=group.temperature)
        yield condition, {"kind": "streams", "seed": seed, "steps": n_steps, "first": first.tolist()}


def _voices(task: _Task, design: Design) -> Voices:
    """The speech of a task: the calibration windows, or its chunk of held-out streams."""
    from validation.divergences.running import Voices, load_voices

    calibration, held_out = load_voices(design, n_steps=max(max(group.steps.values()) for group in design.groups))
    if task.chunk is None:
        chosen = calibration
    else:
        chosen = held_out[task.chunk * design.chunk_streams : (task.chunk + 1) * design.chunk_streams]
    return Voices.of(chosen, n_frames=len(chosen[0].tokens))


def _opened(condition: str, voices: Voices, n_steps: int, group: Group) -> AbstractContextManager[Decoder]:
    """The voice in a condition, with a ring no longer than the run."""
    from precision_eval.cases.voice.conditions import opened

    n_frames = PROMPT_FRAMES + n_steps
    return opened(condition, n_streams=len(voices), n_frames=n_frames, checkpoint_dtype=group.checkpoint_dtype)
