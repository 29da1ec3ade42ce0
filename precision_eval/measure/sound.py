"""The voice in many short streams, each heard against the original speech of its passage: what the sound verdict is of.

Conventions: a stream is a passage of a held-out script, of one of twelve speakers, and a noise seed. Every fix is given
the reference's passages, prompts and noise; the noise floor has noise of its own. The controls have longer prompts, and
so other noise too, since what they do wrong grows with the position in time. The original is the tokens of the passage
through the same codec and vocoder, so that its distance to a rendering is the model's doing alone. Values are kept
stream by stream; they are compared in :mod:`precision_eval.results.sound`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from precision_eval.cases.systems.voice import CHECKPOINT_DTYPE_OF_SIZE
from precision_eval.cases.voice.assets import asset_path, load_streams, manifest
from precision_eval.cases.voice.codec import FRAME_RATE_HZ, HOP_SAMPLES, N_CODEBOOKS, SAMPLE_RATE_HZ, load_codec
from precision_eval.cases.voice.conditions import noise_seed, opened
from precision_eval.cases.voice.recogniser import SILENCE_ID, Recogniser
from precision_eval.cases.voice.synthesis import Stream, free_run
from precision_eval.cases.voice.vocoder import vocode
from precision_eval.core.cells import Cell, Outcome, failed, passed
from precision_eval.core.files import written_whole
from precision_eval.measure.voice import PROMPT_FRAMES, NonFiniteAudioError, stored_arrays

BATCH_STREAMS = 16
LONG_PROMPT_FRAMES = 1024  # twice the window that the model was trained on
PROMPTS = {"control_rope_bfloat16": 512, "control_long_window": LONG_PROMPT_FRAMES}
SHORTEST_S, LONGEST_S = 2.0, 20.0
_NEXT_BATCH = 7919  # added to the seed: no batch has another's noise


def stream_frames(minutes: float) -> int:
    """Length of a stream: a third of the recording's, 2 to 20 s."""
    return round(min(max(20.0 * minutes, SHORTEST_S), LONGEST_S) * FRAME_RATE_HZ)


def passages(count: int, *, n_frames: int) -> list[Stream]:
    """Return passages that do not overlap, each preceded by the longest prompt."""
    return load_streams(count, n_frames=LONG_PROMPT_FRAMES + n_frames)


def spoken_tokens(
    condition: str,
    streams: Sequence[Stream],
    *,
    n_frames: int,
    seed: int,
    mode: str = "eager",
    device: str = "cpu",
    checkpoint_dtype: str = "float32",
) -> np.ndarray:
    """Speak the passages in batches of 16, on one set of weights at a time; tokens (streams, n_frames, K)."""
    prompt = PROMPTS.get(condition, PROMPT_FRAMES)
    rows = []
    for number, batch in enumerate(_batches(streams)):
        voices = [_from(stream, LONG_PROMPT_FRAMES - prompt) for stream in batch]
        with opened(
            condition,
            n_streams=len(batch),
            n_frames=prompt + n_frames + N_CODEBOOKS,  # the delay pattern runs K − 1 frames on
            mode=mode,
            device=device,
            checkpoint_dtype=checkpoint_dtype,
        ) as decoder:
            key = noise_seed(condition, seed) + _NEXT_BATCH * number
            frames = free_run(decoder, voices, prompt_frames=prompt, n_frames=n_frames, seed=key)
            rows.append(np.stack(list(frames), axis=1))
    return np.concatenate(rows)


def _batches(streams: Sequence[Stream]) -> Iterator[Sequence[Stream]]:
    for first in range(0, len(streams), BATCH_STREAMS):
        yield streams[first : first + BATCH_STREAMS]


def _from(stream: Stream, frame: int) -> Stream:
    return Stream(stream.conditioning[frame:], stream.tokens[frame:])


def waveforms(tokens: np.ndarray) -> np.ndarray:
    """Samples of each row of tokens, (streams, n_samples), float32."""
    codec = load_codec()
    return np.stack([vocode(codec.decode(row)) for row in tokens])


def original_tokens(streams: Sequence[Stream], *, n_frames: int) -> np.ndarray:
    """Tokens of the original speech after the longest prompt, (streams, n_frames, K)."""
    return np.stack([stream.tokens[LONG_PROMPT_FRAMES : LONG_PROMPT_FRAMES + n_frames] for stream in streams])


class Listener:
    """Hears a rendering of each passage against its original."""

    def __init__(self, streams: Sequence[Stream], originals: np.ndarray) -> None:
        n_frames = originals.shape[1] // HOP_SAMPLES
        passage = slice(LONG_PROMPT_FRAMES, LONG_PROMPT_FRAMES + n_frames)
        self._labels = [stream.conditioning.phoneme[passage] for stream in streams]
        self._originals = originals
        self._recogniser = Recogniser.load(asset_path("recogniser.safetensors"))

    def heard(self, renderings: np.ndarray) -> dict[str, list[float]]:
        """Return each metric's values, one per stream: distances in dB, phonemes as a fraction of the speech frames."""
        rows = [self._one(*each) for each in zip(self._originals, renderings, self._labels, strict=True)]
        return {name: [row[name] for row in rows] for name in rows[0]}

    def _one(self, original: np.ndarray, samples: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        import audio_metrics

        distance = audio_metrics.compare(original, samples, sample_rate_hz=SAMPLE_RATE_HZ)
        for flag in distance.flags:
            if flag.kind == "non_finite":
                raise NonFiniteAudioError(flag.message)
        speech = labels != SILENCE_ID
        named = self._recogniser.recognise(samples)
        names = ("mel_mcd_db", "log_spectral_distance_db", "level_error_db")
        return {name: float(distance.summaries[name].mean) for name in names} | {
            "phonemes_right": float((named == labels)[speech].mean())
        }


def sound(cell: Cell, run_dir: Path) -> list[Outcome]:
    """Speak every passage under a condition, and keep what is heard of each."""
    (condition,) = cell.fixes
    n_frames = stream_frames(cell.options.minutes)
    streams = passages(cell.options.streams, n_frames=n_frames)
    cpu_start_s = time.process_time()
    tokens = spoken_tokens(
        condition,
        streams,
        n_frames=n_frames,
        seed=cell.options.seed,
        mode=cell.mode,
        device=cell.device,
        checkpoint_dtype=CHECKPOINT_DTYPE_OF_SIZE[cell.size],
    )
    renderings = waveforms(tokens)
    cpu_s = time.process_time() - cpu_start_s
    duration_s = n_frames / FRAME_RATE_HZ
    try:
        heard = Listener(streams, _originals(run_dir, streams, n_frames)).heard(renderings)
    except NonFiniteAudioError as error:
        return [failed(condition, "non_finite", str(error))]
    data = {
        "streams": len(streams),
        "stream_s": duration_s,
        "heard": heard,
        "tokens": [hashlib.sha256(row.tobytes()).hexdigest()[:12] for row in tokens],
        "real_time_factor": len(streams) * duration_s / cpu_s,
        "clock": "process CPU",
    }
    return [passed(condition, data)]


def _originals(run_dir: Path, streams: Sequence[Stream], n_frames: int) -> np.ndarray:
    """Original speech of the passages; made once per run and kept in its folder."""
    files = manifest()["files"]
    made_of = "".join(files[f"{name}.safetensors"]["sha256"] for name in ("scripts", "codec", "vocoder"))
    digest = hashlib.sha256(made_of.encode()).hexdigest()[:12]
    path = run_dir / "streams" / f"original-sound.{digest}.{len(streams)}x{n_frames}.npz"
    stored = stored_arrays(path)
    if stored is None:
        stored = {"samples": waveforms(original_tokens(streams, n_frames=n_frames))}
        with written_whole(path) as partial, partial.open("wb") as file:
            np.savez(file, samples=stored["samples"])
    return stored["samples"]
