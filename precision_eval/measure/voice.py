"""The measures of decoding and sound, cell by cell: of the voice, and of cases from outside that support them.

Conventions: a measure takes a cell and the run's folder and returns one outcome. Tokens and WAVs that later cells need
lie in the run's folder, named by condition, mode and size, each written whole or not at all and named in its record
with its SHA-256; the reference's and the noise floor's are made by cells of their own, which come first. All conditions
get the same prompts and the same Gumbel noise, so the first differing frame is the fix's own doing; steps and samples
count from the end of the prompt. Codec and vocoder always run in float32 (numpy): what differs between two WAVs is the
model's doing. V codes, K codebooks, B streams.
"""

from __future__ import annotations

import hashlib
import re
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from precision_eval.cases.own import built, digest_of, own_case
from precision_eval.cases.systems.voice import CHECKPOINT_DTYPE_OF_SIZE
from precision_eval.cases.voice.assets import asset_path, load_streams, manifest, original_speech, sha256_of
from precision_eval.cases.voice.codec import FRAME_RATE_HZ, HOP_SAMPLES, N_CODEBOOKS, SAMPLE_RATE_HZ, Codec
from precision_eval.cases.voice.conditions import comparator_by_id, noise_seed, opened
from precision_eval.cases.voice.synthesis import Decoder, Stream, free_run, teacher_forced
from precision_eval.cases.voice.vocoder import StreamingVocoder
from precision_eval.core.cells import Cell, Outcome, failed, passed
from precision_eval.core.errors import ParameterError, UnsupportedError
from precision_eval.core.files import UnwritableFileError, described, written_whole
from precision_eval.core.targets import is_target
from precision_eval.measure.decoding import forced_logits, free_running, score_step, synthesised
from precision_eval.stats import bootstrap_interval, kaplan_meier
from precision_eval.trace.attention import AttentionSharpness, probing

if TYPE_CHECKING:
    from audio_metrics import AudioComparison

MAX_TEACHER_FORCED_STREAMS = 12  # one per speaker
PROBE_EVERY_CALLS = 37  # no multiple of the number of layers, so every layer has its turn
SERIES_BIN_STEPS = 25
QUANTITIES = ("relative_error", "kl_nats", "total_variation", "top1_flip")

STREAM_PROMPT_FRAMES = 100  # 2 s
SURVIVAL_POINTS = 60

PROMPT_FRAMES = 200  # 4 s, of a synthesis
_CHUNK_FRAMES = 100
_BYTES_PER_SAMPLE = 4

SHORTEST_S = 0.1
"""Less sound than this has too few windows to be compared."""


def _stem(cell: Cell, condition: str) -> str:
    """File name of a condition's tokens or audio; the references always run eager."""
    mode = "eager" if comparator_by_id(condition) is not None else cell.mode
    device = "" if cell.device == "cpu" else f".{cell.device.replace(':', '')}"
    if is_target(cell.case):  # ids hold paths
        name = re.sub(r"[^\w.+-]+", "_", f"{Path(cell.case).name}.{Path(condition).name}.{mode}")
        return f"{name}.{hashlib.sha256(f'{cell.case} {condition}'.encode()).hexdigest()[:8]}{device}"
    plain = mode == "eager" and cell.size == "default"
    case = "" if cell.case == "voice" else f"{cell.case}."
    return case + (condition if plain else f"{condition}.{mode}.{cell.size}") + device


def _tokens_path(cell: Cell, run_dir: Path, condition: str) -> Path:
    return run_dir / "streams" / f"{_stem(cell, condition)}.npy"


def _wav_path(cell: Cell, run_dir: Path, condition: str) -> Path:
    return run_dir / "audio" / f"{_stem(cell, condition)}.wav"


def _opened(cell: Cell, condition: str, *, n_streams: int, n_frames: int) -> AbstractContextManager[Decoder]:
    return opened(
        condition,
        n_streams=n_streams,
        n_frames=n_frames,
        mode=cell.mode,
        device=cell.device,
        checkpoint_dtype=CHECKPOINT_DTYPE_OF_SIZE[cell.size],
    )


def teacher_forced_drift(cell: Cell, run_dir: Path) -> list[Outcome]:
    """Score the original speech, or of a case from outside the reference's own tokens; hold each step to float64's."""
    (condition,) = cell.fixes
    if is_target(cell.case):
        return [_own_drift(cell, run_dir, condition)]
    options, checkpoint = cell.options, CHECKPOINT_DTYPE_OF_SIZE[cell.size]
    voices = load_streams(min(options.streams, MAX_TEACHER_FORCED_STREAMS), n_frames=options.steps)
    truth = _reference_logits(run_dir, voices, n_frames=options.steps, checkpoint_dtype=checkpoint)
    # a compiled graph no longer looks attention up, so there is nothing to probe
    probe = probing(every=PROBE_EVERY_CALLS) if cell.mode == "eager" else nullcontext(AttentionSharpness())
    with (
        _opened(cell, condition, n_streams=len(voices), n_frames=options.steps) as decoder,
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
    options, streams = cell.options, min(cell.options.streams, MAX_TEACHER_FORCED_STREAMS)
    case = built(cell.case, cell.size, device=cell.device, seed=options.seed)
    name = f"reference-logits.{digest_of(cell.case, case)[:12]}.{streams}x{options.steps}.torch{torch.__version__}.npz"
    path = run_dir / "streams" / name

    def reference() -> dict[str, np.ndarray]:
        logits, tokens = forced_logits(cell, "reference", None, streams=streams)
        return {"logits": logits, "tokens": tokens}

    stored = kept_arrays(path, reference)
    logits, _ = forced_logits(cell, condition, stored["tokens"], streams=streams)
    series = DriftSeries.collect(torch.from_numpy(logits), torch.from_numpy(stored["logits"]))
    if not series.finite:
        return failed(condition, "non_finite", "a logit is NaN or infinite")
    return passed(condition, summarise(series, frame_rate_hz=case.own.steps_per_s, seed=options.seed))


def _reference_logits(
    run_dir: Path, voices: list[Stream], *, n_frames: int, checkpoint_dtype: str
) -> list[torch.Tensor]:
    """Float64 logits of the original speech, (B, K, V) per frame; computed once per run and kept in its folder."""
    weights = manifest()["files"]["voice.safetensors"]["sha256"][:12]
    name = f"reference-logits.{weights}.{checkpoint_dtype}.{len(voices)}x{n_frames}.torch{torch.__version__}.npz"
    path = run_dir / "streams" / name

    def reference() -> dict[str, np.ndarray]:
        with opened(
            "reference", n_streams=len(voices), n_frames=n_frames, checkpoint_dtype=checkpoint_dtype
        ) as decoder:
            return {"logits": np.stack([step.numpy() for step in teacher_forced(decoder, voices, n_frames=n_frames)])}

    return list(torch.from_numpy(kept_arrays(path, reference)["logits"]))


def kept_arrays(path: Path, make: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Read arrays back, or make and keep them where there are none or the file is damaged."""
    try:
        with path.open("rb") as file:
            return dict(np.load(file, allow_pickle=False))  # the archive's checksum is compared here
    except (FileNotFoundError, EOFError, ValueError, zipfile.BadZipFile):
        arrays = make()
    with written_whole(path) as partial, partial.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    return arrays


@dataclass(frozen=True)
class DriftSeries:
    """Per-step, per-stream drift: each of :data:`QUANTITIES`, shape (n_steps, B)."""

    values: dict[str, np.ndarray]

    @classmethod
    def collect(cls, candidate: Iterable[Tensor], reference: Iterable[Tensor]) -> DriftSeries:
        """Walk two teacher-forced runs side by side, in constant memory but for the scores."""
        rows = [score_step(logits, truth) for logits, truth in zip(candidate, reference, strict=True)]
        return cls({name: np.stack([row[name] for row in rows]) for name in QUANTITIES})

    @property
    def finite(self) -> bool:
        """Whether every score is a number."""
        return all(bool(np.isfinite(value).all()) for value in self.values.values())


def summarise(series: DriftSeries, *, frame_rate_hz: float, seed: int) -> dict[str, Any]:
    """Means with 95 % bootstrap intervals over streams, the independent unit, and the course over time."""
    n_steps, n_streams = series.values["relative_error"].shape
    data: dict[str, Any] = {"streams": n_streams, "steps": n_steps}
    for name in ("relative_error", "kl_nats"):
        per_stream = series.values[name].mean(axis=0)
        mean = bootstrap_interval(per_stream, seed=seed)
        data |= {name: mean.estimate, f"{name}_low": mean.low, f"{name}_high": mean.high}
    data["total_variation"] = float(series.values["total_variation"].mean())
    data["top1_flip_fraction"] = float(series.values["top1_flip"].mean())
    n_bins = max(1, n_steps // SERIES_BIN_STEPS)
    bins = np.array_split(np.arange(n_steps), n_bins)
    data["series"] = {"time_s": [float(rows.mean() / frame_rate_hz) for rows in bins]} | {
        name: [float(series.values[name][rows].mean()) for rows in bins] for name in ("relative_error", "kl_nats")
    }
    return data


def streams(cell: Cell, run_dir: Path) -> list[Outcome]:
    """Let the streams run freely and keep their tokens."""
    (condition,) = cell.fixes
    path = _tokens_path(cell, run_dir, condition)
    if is_target(cell.case):
        tokens = free_running(cell, condition, streams=cell.options.streams)
    else:
        tokens = _free_running_voices(cell, condition)
    with written_whole(path) as partial, partial.open("wb") as file:
        np.save(file, tokens, allow_pickle=False)
    data = {"tokens": str(path.relative_to(run_dir)), "shape": list(tokens.shape), "files": described(run_dir, path)}
    return [passed(condition, data)]


def _free_running_voices(cell: Cell, condition: str) -> np.ndarray:
    n_streams, n_steps = cell.options.streams, cell.options.steps
    voices = load_streams(n_streams, n_frames=STREAM_PROMPT_FRAMES + n_steps)
    n_frames = STREAM_PROMPT_FRAMES + n_steps + N_CODEBOOKS  # the delay pattern runs K − 1 frames on
    with _opened(cell, condition, n_streams=n_streams, n_frames=n_frames) as decoder:
        seed = noise_seed(condition, cell.options.seed)
        frames = free_run(decoder, voices, prompt_frames=STREAM_PROMPT_FRAMES, n_frames=n_steps, seed=seed)
        return np.stack(list(frames))


def divergence(cell: Cell, run_dir: Path) -> list[Outcome]:
    """Compare a condition's tokens with the reference's."""
    (condition,) = cell.fixes
    tokens, reference = (
        np.load(_tokens_path(cell, run_dir, name), allow_pickle=False) for name in (condition, "reference")
    )
    rate_hz: float = FRAME_RATE_HZ
    if is_target(cell.case):
        rate_hz = own_case(cell.case, seed=cell.options.seed).steps_per_s
    return [passed(condition, token_divergence(tokens, reference, frame_rate_hz=rate_hz))]


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
    """Speak for the run's minutes; a case from outside, what its script says."""
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


def synthesise(
    condition: str, *, minutes: float, seed: int, wav_path: Path, mode: str, device: str, checkpoint_dtype: str
) -> dict[str, Any]:
    """Speak the held-out script of stream 0 for a while, streamed to a 16 kHz mono WAV in constant memory.

    Speeds are frames per CPU second of one thread, since other cells may run beside this one.
    """
    n_frames = round(minutes * 60 * FRAME_RATE_HZ)
    streams = load_streams(1, n_frames=PROMPT_FRAMES + n_frames)
    codec = Codec.load(asset_path("codec.safetensors"))
    tokens = np.zeros((n_frames, N_CODEBOOKS), dtype=np.uint8)  # 12 kB per minute
    tokens_path = wav_path.with_suffix(".npy")
    with written_whole(wav_path) as partial, written_whole(tokens_path) as partial_tokens:
        cpu_start_s = time.process_time()
        with (
            opened(condition, n_streams=1, mode=mode, device=device, checkpoint_dtype=checkpoint_dtype) as decoder,
            _wav(partial, n_samples=n_frames * HOP_SAMPLES) as wav,
        ):
            vocoder = StreamingVocoder()
            frames = free_run(
                decoder, streams, prompt_frames=PROMPT_FRAMES, n_frames=n_frames, seed=noise_seed(condition, seed)
            )
            for index, frame in enumerate(frames):
                tokens[index] = frame[0]
                if (index + 1) % _CHUNK_FRAMES == 0 or index + 1 == n_frames:
                    first = index - index % _CHUNK_FRAMES
                    _put(wav, vocoder.push(codec.decode(tokens[first : index + 1])))
            _put(wav, vocoder.flush())
        cpu_s = time.process_time() - cpu_start_s
        with partial_tokens.open("wb") as file:
            np.save(file, tokens, allow_pickle=False)
    return {
        "duration_s": n_frames / FRAME_RATE_HZ,
        "frames_per_s": n_frames / cpu_s,
        "real_time_factor": n_frames / FRAME_RATE_HZ / cpu_s,
        "clock": "process CPU",
        "sha256": sha256_of(tokens_path),
    }


def synthesise_own(cell: Cell, condition: str, wav_path: Path) -> dict[str, Any]:
    """Let a case from outside say its script."""
    cpu_start_s = time.process_time()
    samples, rate_hz = synthesised(cell, condition)
    cpu_s = time.process_time() - cpu_start_s
    with written_whole(wav_path) as partial, _wav(partial, n_samples=len(samples), rate_hz=rate_hz) as wav:
        _put(wav, samples)
    duration_s = len(samples) / rate_hz
    return {"duration_s": duration_s, "real_time_factor": duration_s / cpu_s, "clock": "process CPU"}


def _put(wav: Any, samples: np.ndarray) -> None:
    """Append samples; soundfile merely asserts that all were taken."""
    try:
        wav.write(samples)
    except AssertionError as error:
        raise UnwritableFileError("the WAV took only part of the samples; is the disk full?") from error


@contextmanager
def _wav(path: Path, *, n_samples: int, rate_hz: int = SAMPLE_RATE_HZ) -> Iterator[Any]:
    """Open a WAV for writing; after the block it must read as one of `n_samples`, or it was cut short."""
    import soundfile

    try:
        with soundfile.SoundFile(path, "w", rate_hz, 1, subtype="FLOAT", format="WAV") as file:
            yield file
        found = soundfile.info(path).frames
    except soundfile.LibsndfileError as error:
        raise UnwritableFileError(f"the WAV cannot be written ({error.error_string}); is the disk full?") from error
    if found != n_samples or path.stat().st_size < n_samples * _BYTES_PER_SAMPLE:
        raise UnwritableFileError(f"the WAV holds {found} of {n_samples} samples after writing; is the disk full?")


def audio(cell: Cell, run_dir: Path) -> list[Outcome]:
    """Compare a condition's audio with the reference's, beside the noise floor, and with the original speech."""
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


class NonFiniteAudioError(ArithmeticError):
    """A recording holds samples that are NaN or infinite; nothing measured of it would mean anything."""


def spoken_script(n_frames: int) -> np.ndarray:
    """Phonemes of stream 0 after its prompt, for ``n_frames`` frames (the script starts over at its end)."""
    conditioning = load_streams(1, n_frames=PROMPT_FRAMES + n_frames)[0].conditioning
    return conditioning.phoneme[(PROMPT_FRAMES + np.arange(n_frames)) % len(conditioning)]


def _read(path: Path) -> tuple[np.ndarray, int]:
    import soundfile

    return soundfile.read(path, dtype="float32")


class _OnDisk:
    """A WAV as a recogniser slices it, read where it is asked for."""

    ndim = 1

    def __init__(self, path: Path) -> None:
        import soundfile

        self._file = soundfile.SoundFile(path)
        self.shape = (self._file.frames,)

    def __getitem__(self, part: slice) -> np.ndarray:
        start, stop, _ = part.indices(self.shape[0])
        self._file.seek(start)
        return np.asarray(self._file.read(stop - start, dtype="float32"))


def _to_noise_floor(distance: AudioComparison, null: Callable[[], AudioComparison] | None) -> dict[str, Any]:
    """Distance of a synthesis from the reference's, with its ratio to that of the noise floor."""
    from audio_metrics.comparison import SUMMARISED

    for flag in distance.flags:
        if flag.kind == "non_finite":
            raise NonFiniteAudioError(flag.message)
    if null is None:
        return distance.to_dict()
    data = distance.against_null(null()).to_dict()
    for name in SUMMARISED:
        data[name]["ratio_to_null"] = data["ratio_to_null"][name]
    return data


def compare_own(wav_path: Path, *, reference_path: Path, null_path: Path) -> dict[str, Any]:
    """Measure one synthesis of a case from outside against the reference's; what one lasts longer is left out."""
    import audio_metrics

    waves = [_read(path) for path in (wav_path, reference_path, null_path)]
    rate_hz = waves[0][1]
    lengths = [len(samples) for samples, _ in waves]
    if min(lengths) < rate_hz * SHORTEST_S:
        raise UnsupportedError(
            f"synthesize made {min(lengths) / rate_hz:.3f} s of sound; expected {SHORTEST_S} s or more"
        )
    cut = [samples[: min(lengths)] for samples, _ in waves]
    texts = ", ".join(f"{length / rate_hz:.2f} s" for length in lengths)
    doubt = f"the sounds of fix, reference and noise floor last {texts}; what they have in common was compared"
    doubts = [doubt] if len(set(lengths)) > 1 else []
    audio, reference, noise_floor = cut
    draws = not np.array_equal(reference, noise_floor)
    if not draws:
        doubts.append("another seed gives the very same sound, so there is no noise floor to hold the distance to")
    compare = partial(audio_metrics.compare, reference, sample_rate_hz=rate_hz)
    compared = _to_noise_floor(compare(audio), partial(compare, noise_floor) if draws else None)
    return {"duration_s": min(lengths) / rate_hz, "against_reference": compared, "doubts": doubts}


def compare_with_references(wav_path: Path, *, reference_path: Path, null_path: Path) -> dict[str, Any]:
    """Measure one synthesis against the reference's and against the original speech.

    The original is the espeak speech of the very script, for the length of ``speech.flac``; it never went through the
    codec, so the reference's own distance to it (codec, vocoder and model together) is the floor of that column.
    """
    import audio_metrics
    from precision_eval.cases.voice.recogniser import Recogniser

    compare = partial(audio_metrics.compare_files, reference_path)
    against_reference = _to_noise_floor(compare(wav_path), partial(compare, null_path))
    audio: Any = _OnDisk(wav_path)
    original = original_speech()[0][PROMPT_FRAMES * HOP_SAMPLES :]
    n_samples = min(len(original), audio.shape[0])
    from_original = audio_metrics.compare(original[:n_samples], audio[:n_samples], sample_rate_hz=SAMPLE_RATE_HZ)
    n_frames = audio.shape[0] // HOP_SAMPLES
    recogniser = Recogniser.load(asset_path("recogniser.safetensors"))
    heard = recogniser.phoneme_accuracy(audio, spoken_script(n_frames))
    original_frames = n_samples // HOP_SAMPLES
    heard_original = recogniser.phoneme_accuracy(
        original[: original_frames * HOP_SAMPLES], spoken_script(original_frames)
    )
    return {
        "duration_s": audio.shape[0] / SAMPLE_RATE_HZ,
        "against_reference": against_reference,
        "against_original": {**from_original.to_dict(), "duration_s": n_samples / SAMPLE_RATE_HZ},
        "phoneme_accuracy": {
            "value": heard.value,
            "first_third": heard.first_third,
            "last_third": heard.last_third,
            "original": heard_original.value,
            "original_first_third": heard_original.first_third,
            "original_last_third": heard_original.last_third,
        },
    }
