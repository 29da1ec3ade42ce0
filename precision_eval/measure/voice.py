"""The measures of decoding and sound, cell by cell: of the voice, and of cases from outside that support them.

Conventions: each function takes a cell and the run's folder and returns one outcome. Tokens and WAVs that later cells
need lie in the run's folder, named by condition, mode and size, each written whole or not at all and named in its
record with its SHA-256; the reference's and the noise floor's are made by cells of their own, which come first.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from precision_eval.cases.own import own_case
from precision_eval.cases.systems.voice import CHECKPOINT_DTYPE_OF_SIZE
from precision_eval.cases.voice.codec import FRAME_RATE_HZ
from precision_eval.core.cells import Cell, Outcome, failed, passed
from precision_eval.core.files import described, written_whole
from precision_eval.core.targets import is_target

if TYPE_CHECKING:
    from precision_eval.cases.voice.synthesis import Stream

MAX_TEACHER_FORCED_STREAMS = 12  # one per speaker
PROBE_EVERY_CALLS = 37  # no multiple of the number of layers, so every layer has its turn


def _stem(cell: Cell, condition: str) -> str:
    """File name of a condition's tokens or audio; the references always run eager."""
    from precision_eval.cases.voice.conditions import comparator_by_id

    mode = "eager" if comparator_by_id(condition) is not None else cell.mode
    if is_target(cell.case):  # ids hold paths
        name = re.sub(r"[^\w.+-]+", "_", f"{Path(cell.case).name}.{Path(condition).name}.{mode}")
        return f"{name}.{hashlib.sha256(f'{cell.case} {condition}'.encode()).hexdigest()[:8]}"
    plain = mode == "eager" and cell.size == "default"
    return condition if plain else f"{condition}.{mode}.{cell.size}"


def _tokens_path(cell: Cell, run_dir: Path, condition: str) -> Path:
    return run_dir / "streams" / f"{_stem(cell, condition)}.npy"


def _wav_path(cell: Cell, run_dir: Path, condition: str) -> Path:
    return run_dir / "audio" / f"{_stem(cell, condition)}.wav"


def teacher_forced_drift(cell: Cell, run_dir: Path) -> list[Outcome]:
    """Score the original speech, or of a case from outside the reference's own tokens; hold each step to float64's."""
    from precision_eval.cases.voice.assets import load_streams
    from precision_eval.cases.voice.conditions import opened
    from precision_eval.cases.voice.synthesis import teacher_forced
    from precision_eval.measure.teacher_forced import DriftSeries, summarise
    from precision_eval.trace.attention import AttentionSharpness, probing

    (condition,) = cell.fixes
    if is_target(cell.case):
        return [_own_drift(cell, run_dir, condition)]
    options, checkpoint = cell.options, CHECKPOINT_DTYPE_OF_SIZE[cell.size]
    voices = load_streams(min(options.streams, MAX_TEACHER_FORCED_STREAMS), n_frames=options.steps)
    truth = _reference_logits(run_dir, voices, n_frames=options.steps, checkpoint_dtype=checkpoint)
    # a compiled graph no longer looks attention up, so there is nothing to probe
    probe = probing(every=PROBE_EVERY_CALLS) if cell.mode == "eager" else nullcontext(AttentionSharpness())
    with (
        opened(
            condition,
            n_streams=len(voices),
            n_frames=options.steps,
            mode=cell.mode,
            device=cell.device,
            checkpoint_dtype=checkpoint,
        ) as decoder,
        probe as sharpness,
    ):
        series = DriftSeries.collect(teacher_forced(decoder, voices, n_frames=options.steps), truth)
    if not series.finite:
        return [failed(condition, "non_finite", "a logit is NaN or infinite")]
    data = summarise(series, frame_rate_hz=FRAME_RATE_HZ, seed=options.seed)
    if sharpness.calls:
        data |= {"max_abs_logit": sharpness.max_abs_logit, "attention_entropy_nats": sharpness.entropy_nats}
    return [passed(condition, data)]


def _own_drift(cell: Cell, run_dir: Path, condition: str) -> Outcome:
    from precision_eval.cases.own import built, digest_of
    from precision_eval.measure.decoding import forced_logits
    from precision_eval.measure.teacher_forced import DriftSeries, summarise

    options, streams = cell.options, min(cell.options.streams, MAX_TEACHER_FORCED_STREAMS)
    case = built(cell.case, cell.size, device=cell.device, seed=options.seed)
    name = f"reference-logits.{digest_of(cell.case, case)[:12]}.{streams}x{options.steps}.torch{torch.__version__}.npz"
    path = run_dir / "streams" / name
    stored = _stored(path)
    if stored is None:
        logits, tokens = forced_logits(cell, "reference", None, streams=streams)
        stored = {"logits": logits, "tokens": tokens}
        with written_whole(path) as partial, partial.open("wb") as file:
            np.savez(file, logits=logits, tokens=tokens)
    logits, _ = forced_logits(cell, condition, stored["tokens"], streams=streams)
    series = DriftSeries.collect(torch.from_numpy(logits), torch.from_numpy(stored["logits"]))
    if not series.finite:
        return failed(condition, "non_finite", "a logit is NaN or infinite")
    return passed(condition, summarise(series, frame_rate_hz=case.own.steps_per_s, seed=options.seed))


def _reference_logits(
    run_dir: Path, voices: list[Stream], *, n_frames: int, checkpoint_dtype: str
) -> list[torch.Tensor]:
    """Float64 logits of the original speech, (B, K, V) per frame; computed once per run and kept in its folder."""
    from precision_eval.cases.voice.assets import manifest
    from precision_eval.cases.voice.conditions import opened
    from precision_eval.cases.voice.synthesis import teacher_forced

    weights = manifest()["files"]["voice.safetensors"]["sha256"][:12]
    name = f"reference-logits.{weights}.{checkpoint_dtype}.{len(voices)}x{n_frames}.torch{torch.__version__}.npz"
    path = run_dir / "streams" / name
    stored = _stored(path)
    if stored is None:
        with opened(
            "reference", n_streams=len(voices), n_frames=n_frames, checkpoint_dtype=checkpoint_dtype
        ) as decoder:
            logits = np.stack([step.numpy() for step in teacher_forced(decoder, voices, n_frames=n_frames)])
        with written_whole(path) as partial, partial.open("wb") as file:
            np.savez(file, logits=logits)
        return list(torch.from_numpy(logits))
    return list(torch.from_numpy(stored["logits"]))


def _stored(path: Path) -> dict[str, np.ndarray] | None:
    """Read arrays back; None where there are none, or where the file is damaged."""
    try:
        with path.open("rb") as file:
            return dict(np.load(file, allow_pickle=False))  # the archive's checksum is compared here
    except (FileNotFoundError, EOFError, ValueError, zipfile.BadZipFile):
        return None


def streams(cell: Cell, run_dir: Path) -> list[Outcome]:
    """Let the streams run freely and keep their tokens."""
    from precision_eval.measure.decoding import free_running
    from precision_eval.measure.streams import free_running_tokens

    (condition,) = cell.fixes
    path = _tokens_path(cell, run_dir, condition)
    if is_target(cell.case):
        tokens = free_running(cell, condition, streams=cell.options.streams)
    else:
        tokens = free_running_tokens(
            condition,
            n_streams=cell.options.streams,
            n_steps=cell.options.steps,
            seed=cell.options.seed,
            mode=cell.mode,
            device=cell.device,
            checkpoint_dtype=CHECKPOINT_DTYPE_OF_SIZE[cell.size],
        )
    with written_whole(path) as partial, partial.open("wb") as file:
        np.save(file, tokens, allow_pickle=False)
    data = {"tokens": str(path.relative_to(run_dir)), "shape": list(tokens.shape), "files": described(run_dir, path)}
    return [passed(condition, data)]


def divergence(cell: Cell, run_dir: Path) -> list[Outcome]:
    """Compare a condition's tokens with the reference's."""
    from precision_eval.measure import streams as measure

    (condition,) = cell.fixes
    tokens, reference = (
        np.load(_tokens_path(cell, run_dir, name), allow_pickle=False) for name in (condition, "reference")
    )
    rate_hz: float = FRAME_RATE_HZ
    if is_target(cell.case):
        rate_hz = own_case(cell.case, seed=cell.options.seed).steps_per_s
    return [passed(condition, measure.divergence(tokens, reference, frame_rate_hz=rate_hz))]


def synthesis(cell: Cell, run_dir: Path) -> list[Outcome]:
    """Speak for the run's minutes; a case from outside, what its script says."""
    from precision_eval.measure.synthesis import synthesise, synthesise_own

    (condition,) = cell.fixes
    path = _wav_path(cell, run_dir, condition)
    if is_target(cell.case):
        data = synthesise_own(cell, condition, path)
        return [passed(condition, {"wav": str(path.relative_to(run_dir)), "files": described(run_dir, path), **data})]
    data = synthesise(
        condition,
        minutes=cell.options.minutes,
        seed=cell.options.seed,
        wav_path=path,
        mode=cell.mode,
        device=cell.device,
        checkpoint_dtype=CHECKPOINT_DTYPE_OF_SIZE[cell.size],
    )
    files = described(run_dir, path, path.with_suffix(".npy"))
    return [passed(condition, {"wav": str(path.relative_to(run_dir)), "files": files, **data})]


def audio(cell: Cell, run_dir: Path) -> list[Outcome]:
    """Compare a condition's audio with the reference's, beside the noise floor, and with the original speech."""
    from precision_eval.measure.audio import NonFiniteAudioError, compare_own, compare_with_references

    (condition,) = cell.fixes
    path, reference_path, null_path = (
        _wav_path(cell, run_dir, name) for name in (condition, "reference", "noise_floor")
    )
    try:
        compare = compare_own if is_target(cell.case) else compare_with_references
        data = compare(path, reference_path=reference_path, null_path=null_path)
    except NonFiniteAudioError as error:
        return [failed(condition, "non_finite", str(error))]
    return [passed(condition, data)]
