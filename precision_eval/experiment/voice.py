"""The voice's measures, cell by cell.

Conventions: each function takes a cell and the run's folder and returns one outcome. Tokens and WAVs that later cells
need lie in the run's folder, named by condition, mode and size; the oracle's and the null's are made by cells of their
own, which come first.

Contents: :func:`teacher_forced_drift`, :func:`streams`, :func:`divergence`, :func:`synthesis`, :func:`audio`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from precision_eval.experiment.cells import Cell, Outcome, failed, passed
from precision_eval.voice.codec import FRAME_RATE_HZ
from precision_eval.workloads.voice import CHECKPOINT_DTYPE_OF_SIZE

MAX_TEACHER_FORCED_STREAMS = 12  # one per speaker
PROBE_STREAMS = 2
PROBE_FRAMES = 25


def _stem(cell: Cell, condition: str) -> str:
    """File name of a condition's tokens or audio; the references always run eager."""
    from precision_eval.voice.conditions import reference_by_id

    mode = "eager" if reference_by_id(condition) is not None else cell.mode
    plain = mode == "eager" and cell.size == "default"
    return condition if plain else f"{condition}.{mode}.{cell.size}"


def _tokens_path(cell: Cell, run_dir: Path, condition: str) -> Path:
    return run_dir / "streams" / f"{_stem(cell, condition)}.npy"


def _wav_path(cell: Cell, run_dir: Path, condition: str) -> Path:
    return run_dir / "audio" / f"{_stem(cell, condition)}.wav"


def teacher_forced_drift(cell: Cell, run_dir: Path) -> list[Outcome]:
    """Score the original speech under a condition and, step by step beside it, in float64."""
    from precision_eval.measure.attention_probe import probing
    from precision_eval.measure.teacher_forced import DriftSeries, summarise
    from precision_eval.voice.assets import load_streams
    from precision_eval.voice.conditions import opened
    from precision_eval.voice.synthesis import teacher_forced

    (condition,) = cell.fixes
    options, checkpoint = cell.options, CHECKPOINT_DTYPE_OF_SIZE[cell.size]
    n_streams = min(options.streams, MAX_TEACHER_FORCED_STREAMS)
    voices = load_streams(n_streams, n_frames=options.steps)
    with opened("oracle", n_streams=n_streams, device="cpu", checkpoint_dtype=checkpoint) as decoder:
        truth = list(teacher_forced(decoder, voices, n_frames=options.steps))
    opening = {"mode": cell.mode, "device": cell.device, "checkpoint_dtype": checkpoint}
    with opened(condition, n_streams=n_streams, **opening) as decoder:
        series = DriftSeries.collect(teacher_forced(decoder, voices, n_frames=options.steps), truth)
    if not series.finite:
        return [failed(condition, "non_finite", "a logit is NaN or infinite")]
    data = summarise(series, frame_rate_hz=FRAME_RATE_HZ, seed=options.seed)
    if cell.mode == "eager":
        with opened(condition, n_streams=PROBE_STREAMS, **opening) as decoder, probing() as sharpness:
            for _ in teacher_forced(decoder, voices[:PROBE_STREAMS], n_frames=min(PROBE_FRAMES, options.steps)):
                pass
        data |= {"max_abs_logit": sharpness.max_abs_logit, "attention_entropy_nats": sharpness.entropy_nats}
    return [passed(condition, data)]


def streams(cell: Cell, run_dir: Path) -> list[Outcome]:
    """Let the streams run freely and keep their tokens."""
    from precision_eval.measure.streams import free_running_tokens

    (condition,) = cell.fixes
    path = _tokens_path(cell, run_dir, condition)
    tokens = free_running_tokens(
        condition,
        n_streams=cell.options.streams,
        n_steps=cell.options.steps,
        seed=cell.options.seed,
        mode=cell.mode,
        device=cell.device,
        checkpoint_dtype=CHECKPOINT_DTYPE_OF_SIZE[cell.size],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, tokens, allow_pickle=False)
    return [passed(condition, {"tokens": str(path.relative_to(run_dir)), "shape": list(tokens.shape)})]


def divergence(cell: Cell, run_dir: Path) -> list[Outcome]:
    """Compare a condition's tokens with the oracle's."""
    from precision_eval.measure import streams as measure

    (condition,) = cell.fixes
    tokens, oracle = (np.load(_tokens_path(cell, run_dir, name), allow_pickle=False) for name in (condition, "oracle"))
    return [passed(condition, measure.divergence(tokens, oracle, frame_rate_hz=FRAME_RATE_HZ))]


def synthesis(cell: Cell, run_dir: Path) -> list[Outcome]:
    """Speak for the run's minutes."""
    from precision_eval.measure.synthesis import synthesise

    (condition,) = cell.fixes
    path = _wav_path(cell, run_dir, condition)
    data = synthesise(
        condition,
        minutes=cell.options.minutes,
        seed=cell.options.seed,
        wav_path=path,
        mode=cell.mode,
        device=cell.device,
        checkpoint_dtype=CHECKPOINT_DTYPE_OF_SIZE[cell.size],
    )
    return [passed(condition, {"wav": str(path.relative_to(run_dir)), **data})]


def audio(cell: Cell, run_dir: Path) -> list[Outcome]:
    """Compare a condition's audio with the oracle's, beside the null, and with the original speech."""
    from precision_eval.measure.audio import compare_with_references

    (condition,) = cell.fixes
    path, oracle_path, null_path = (_wav_path(cell, run_dir, name) for name in (condition, "oracle", "null"))
    return [passed(condition, compare_with_references(path, oracle_path=oracle_path, null_path=null_path))]
