"""The measures of decoding and sound, cell by cell: of the shipped voice, and of cases from outside that support them.

Conventions: a measure takes a cell and the run's folder and returns one outcome. Tokens and WAVs that later cells need
lie in the run's folder, named by condition, mode and size, and are named in their records with a SHA-256; the
reference's and the noise floor's are made by cells of their own, which come first. B streams, K codebooks.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from precision_eval.cases.voice.conditions import comparator_by_id
from precision_eval.core.cells import Cell, Outcome, failed, passed
from precision_eval.core.errors import ParameterError
from precision_eval.core.files import described, written_whole
from precision_eval.core.targets import is_target
from precision_eval.measure.decoding import OwnSpeech, score_step
from precision_eval.measure.shipped_voice import ShippedVoice
from precision_eval.measure.sound import NonFiniteAudioError
from precision_eval.stats.intervals import bootstrap_interval
from precision_eval.stats.survival import kaplan_meier

SERIES_BIN_STEPS = 25
SURVIVAL_POINTS = 60


def subject_of(cell: Cell) -> OwnSpeech | ShippedVoice:
    return OwnSpeech(cell) if is_target(cell.case) else ShippedVoice(cell)


def _stem(cell: Cell, condition: str) -> str:
    """File name of a condition's tokens or audio; the references always run eager."""
    mode = "eager" if comparator_by_id(condition) is not None else cell.mode
    device = "" if cell.device == "cpu" else f".{cell.device.replace(':', '')}"
    if is_target(cell.case):  # ids hold paths
        name = re.sub(r"[^\w.+-]+", "_", f"{Path(cell.case).name}.{Path(condition).name}.{mode}")
        return f"{name}.{hashlib.sha256(f'{cell.case} {condition}'.encode()).hexdigest()[:8]}{device}"
    plain = mode == "eager" and cell.size == "default"
    return (condition if plain else f"{condition}.{mode}.{cell.size}") + device


def _tokens_path(cell: Cell, run_dir: Path, condition: str) -> Path:
    return run_dir / "streams" / f"{_stem(cell, condition)}.npy"


def _wav_path(cell: Cell, run_dir: Path, condition: str) -> Path:
    return run_dir / "audio" / f"{_stem(cell, condition)}.wav"


def teacher_forced_drift(cell: Cell, run_dir: Path) -> list[Outcome]:
    """Compare the logits of each step with float64's, both along the same tokens."""
    (condition,), subject = cell.fixes, subject_of(cell)
    with subject.forced(condition, run_dir) as (logits, truth, sharpness):
        scores = score_steps(logits, truth)
    if not all(np.isfinite(values).all() for values in scores.values()):
        return [failed(condition, "non_finite", "a logit is NaN or infinite")]
    data = summarise(scores, frame_rate_hz=subject.rate_hz, seed=cell.options.seed)
    if sharpness.calls:
        data |= {"max_abs_logit": sharpness.max_abs_logit, "attention_entropy_nats": sharpness.entropy_nats}
    return [passed(condition, data)]


def score_steps(candidate: Iterable[Tensor], reference: Iterable[Tensor]) -> dict[str, np.ndarray]:
    """Walk two teacher-forced runs side by side; returns the scores of :func:`score_step`, (n_steps, B) each."""
    rows = [score_step(logits, truth) for logits, truth in zip(candidate, reference, strict=True)]
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def summarise(scores: dict[str, np.ndarray], *, frame_rate_hz: float, seed: int) -> dict[str, Any]:
    """Means with 95 % bootstrap intervals over streams, the independent unit, and the course over time."""
    n_steps, n_streams = scores["relative_error"].shape
    data: dict[str, Any] = {"streams": n_streams, "steps": n_steps}
    for name in ("relative_error", "kl_nats"):
        per_stream = scores[name].mean(axis=0)
        mean = bootstrap_interval(per_stream, seed=seed)
        data |= {name: mean.estimate, f"{name}_low": mean.low, f"{name}_high": mean.high}
    data["total_variation"] = float(scores["total_variation"].mean())
    data["top1_flip_fraction"] = float(scores["top1_flip"].mean())
    n_bins = max(1, n_steps // SERIES_BIN_STEPS)
    bins = np.array_split(np.arange(n_steps), n_bins)
    data["series"] = {"time_s": [float(rows.mean() / frame_rate_hz) for rows in bins]} | {
        name: [float(scores[name][rows].mean()) for rows in bins] for name in ("relative_error", "kl_nats")
    }
    return data


def streams(cell: Cell, run_dir: Path) -> list[Outcome]:
    """Let the streams run freely and keep their tokens."""
    (condition,) = cell.fixes
    path, tokens = _tokens_path(cell, run_dir, condition), subject_of(cell).tokens(condition)
    with written_whole(path) as partial, partial.open("wb") as file:
        np.save(file, tokens, allow_pickle=False)
    data = {"tokens": str(path.relative_to(run_dir)), "shape": list(tokens.shape), "files": described(run_dir, path)}
    return [passed(condition, data)]


def divergence(cell: Cell, run_dir: Path) -> list[Outcome]:
    """Compare a condition's tokens with the reference's."""
    (condition,) = cell.fixes
    tokens, reference = (
        np.load(_tokens_path(cell, run_dir, name), allow_pickle=False) for name in (condition, "reference")
    )
    return [passed(condition, token_divergence(tokens, reference, frame_rate_hz=subject_of(cell).rate_hz))]


def token_divergence(tokens: np.ndarray, reference: np.ndarray, *, frame_rate_hz: float) -> dict[str, Any]:
    """Say when free-running tokens leave the reference's; a stream that never does is censored at the last step."""
    if tokens.shape != reference.shape:
        raise ParameterError(
            f"tokens {tokens.shape} and the reference's {reference.shape} differ in shape; same streams, same steps"
        )
    n_steps, n_streams = tokens.shape[:2]
    differs = (tokens != reference).any(axis=2)  # (n_steps, B)
    diverged = differs.any(axis=0)
    first = differs.argmax(axis=0)
    # counted from 1: a stream that differs in its first frame has survived no frame, and left at the end of it
    time_s = np.where(diverged, first + 1, n_steps) / frame_rate_hz
    at = np.unique(np.linspace(0, n_steps, SURVIVAL_POINTS + 1).astype(int)) / frame_rate_hz
    return {
        "streams": n_streams,
        "steps": n_steps,
        "frame_rate_hz": frame_rate_hz,
        "diverged": int(diverged.sum()),
        "first_divergent_step": [int(step) if left else None for step, left in zip(first, diverged, strict=True)],
        "token_difference_fraction": float((tokens != reference).mean()),
        "survival": kaplan_meier(time_s, diverged).sampled(at),
    }


def synthesis(cell: Cell, run_dir: Path) -> list[Outcome]:
    """Speak: the shipped voice for the run's minutes, a case from outside what its script says."""
    (condition,) = cell.fixes
    path = _wav_path(cell, run_dir, condition)
    data, files = subject_of(cell).speak(condition, path)
    return [passed(condition, {"wav": str(path.relative_to(run_dir)), "files": described(run_dir, *files), **data})]


def audio(cell: Cell, run_dir: Path) -> list[Outcome]:
    """Compare a condition's recording with the reference's, and that distance with the noise floor's."""
    (condition,) = cell.fixes
    path, reference_path, null_path = (
        _wav_path(cell, run_dir, name) for name in (condition, "reference", "noise_floor")
    )
    try:
        return [passed(condition, subject_of(cell).compare(path, reference_path=reference_path, null_path=null_path))]
    except NonFiniteAudioError as error:
        return [failed(condition, "non_finite", str(error))]


def sound(cell: Cell, run_dir: Path) -> list[Outcome]:
    """Speak every passage under a condition, and keep what is heard of each."""
    (condition,) = cell.fixes
    try:
        return [passed(condition, subject_of(cell).hear(condition, run_dir))]
    except NonFiniteAudioError as error:
        return [failed(condition, "non_finite", str(error))]
