"""The voice in many short streams, each heard against the original speech of its passage: what the sound verdict is of.

Conventions: a stream is a passage of a held-out script, of one of twelve speakers, and a noise seed. Every fix is given
the reference's passages, prompts and noise; the noise floor has noise of its own. The controls have longer prompts, and
so other noise too, since what they do wrong grows with the position in time. The original is the tokens of the passage
through the same codec and vocoder, so that its distance to a rendering is the model's doing alone. Values are kept
stream by stream; they are compared in :mod:`precision_eval.results.sound`.

A case from outside has no original. Each of its streams is held to the reference's own speech of the same script under
noise that no condition is given: a fix that speaks as the reference does lies as far from it as the reference does.
What counts as no worse is then how far the drop-outs of the margin move the reference's own streams: no change of a
distance to anything else can be larger. Where another seed gives the same sound, distances are to the reference itself.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from precision_eval.cases.own import OwnCase, built, digest_of, own_case
from precision_eval.cases.systems.voice import CHECKPOINT_DTYPE_OF_SIZE
from precision_eval.cases.voice.assets import asset_path, load_streams, sha256_of
from precision_eval.cases.voice.codec import FRAME_RATE_HZ, HOP_SAMPLES, N_CODEBOOKS, SAMPLE_RATE_HZ, Codec
from precision_eval.cases.voice.conditions import noise_seed, opened
from precision_eval.cases.voice.recogniser import SILENCE_ID, Recogniser
from precision_eval.cases.voice.synthesis import Stream, free_run
from precision_eval.cases.voice.vocoder import MagnitudeNetwork, vocode
from precision_eval.core.cells import Cell, Outcome, failed, passed
from precision_eval.core.errors import UnsupportedError
from precision_eval.core.targets import is_target
from precision_eval.measure.decoding import said
from precision_eval.measure.voice import PROMPT_FRAMES, SHORTEST_S, NonFiniteAudioError, kept_arrays

BATCH_STREAMS = 16
LONG_PROMPT_FRAMES = 1024  # twice the window that the model was trained on
PROMPTS = {"control_rope_bfloat16": 512, "control_long_window": LONG_PROMPT_FRAMES}
SHORTEST_STREAM_S, LONGEST_STREAM_S = 2.0, 20.0
DISTANCES = ("mel_mcd_db", "log_spectral_distance_db", "level_error_db")
LENGTH = "length_error"
DROP_OUT_S = 0.02
_OTHER_NOISE = 2_000_003  # of no condition
_VOCODED = 8  # streams at once: as many as a core's cache holds the spectra of
_NEXT_BATCH = 7919  # added to the seed: no batch has another's noise


def stream_frames(minutes: float) -> int:
    """Length of a stream: a third of the recording's, 2 to 20 s."""
    return round(min(max(20.0 * minutes, SHORTEST_STREAM_S), LONGEST_STREAM_S) * FRAME_RATE_HZ)


def passages(count: int, *, n_frames: int) -> list[Stream]:
    """Return passages that do not overlap where the scripts are long enough, each preceded by the longest prompt."""
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
    codec = Codec.load(asset_path("codec.safetensors"))
    network = MagnitudeNetwork.load(asset_path("vocoder.safetensors"))
    mels = np.stack([codec.decode(row) for row in tokens])
    parts = [mels[first : first + _VOCODED] for first in range(0, len(mels), _VOCODED)]
    return np.concatenate([vocode(part, network=network) for part in parts])


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
        each = zip(self._originals, renderings, self._labels, strict=True)
        rows = [self._one(*one) for one in each]
        return {name: [row[name] for row in rows] for name in rows[0]}

    def _one(self, original: np.ndarray, samples: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        heard = distances(original, samples, rate_hz=SAMPLE_RATE_HZ)  # first: it refuses what is not finite
        speech = labels != SILENCE_ID
        named = self._recogniser.recognise(samples)
        heard["phonemes_right"] = float((named == labels)[speech].mean())
        return heard


def distances(original: np.ndarray, samples: np.ndarray, *, rate_hz: int) -> dict[str, float]:
    """Mean distances of a rendering to an original of the same length, dB."""
    import audio_metrics

    distance = audio_metrics.compare(original, samples, sample_rate_hz=rate_hz)
    for flag in distance.flags:
        if flag.kind == "non_finite":
            raise NonFiniteAudioError(flag.message)
    return {name: float(distance.summaries[name].mean) for name in DISTANCES}


def sound(cell: Cell, run_dir: Path) -> list[Outcome]:
    """Speak every passage under a condition, and keep what is heard of each."""
    (condition,) = cell.fixes
    try:
        return [passed(condition, (_heard_of_own if is_target(cell.case) else _heard)(cell, run_dir, condition))]
    except NonFiniteAudioError as error:
        return [failed(condition, "non_finite", str(error))]


def _heard(cell: Cell, run_dir: Path, condition: str) -> dict[str, Any]:
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
    listener = Listener(streams, _originals(run_dir, streams, n_frames))
    return {
        "streams": len(streams),
        "stream_s": duration_s,
        "heard": listener.heard(renderings),
        "doubts": [],
        "tokens": [hashlib.sha256(row.tobytes()).hexdigest()[:12] for row in tokens],
        "real_time_factor": len(streams) * duration_s / cpu_s,
        "clock": "process CPU",
    }


def _heard_of_own(cell: Cell, run_dir: Path, condition: str) -> dict[str, Any]:
    """Hear as many streams as asked for, each of the next script; the reference's also with drop-outs."""
    seed, count = cell.options.seed, cell.options.streams
    own = own_case(cell.case, seed=seed)
    cpu_start_s = time.process_time()
    waves, rate_hz = said(cell, condition, own, _own_passages(own, count, noise_seed(condition, seed)))
    cpu_s = time.process_time() - cpu_start_s
    others = _own_others(cell, run_dir, own)
    rows = [_from_other(*pair, rate_hz) for pair in zip(others, waves, strict=True)]
    length_s = sum(map(len, waves)) / rate_hz
    data: dict[str, Any] = {
        "streams": count,
        "stream_s": round(sum(map(len, others)) / rate_hz / count, 2),
        "heard": {name: [row[name] for row in rows] for name in rows[0]},
        "tokens": [hashlib.sha256(wave.tobytes()).hexdigest()[:12] for wave in waves],
        "real_time_factor": length_s / cpu_s,
        "clock": "process CPU",
        "doubts": [],
    }
    if condition == "reference":
        dropped = [_with_drop_outs(wave, rate_hz=rate_hz, seed=seed + n) for n, wave in enumerate(waves)]
        moved = [_from_other(*pair, rate_hz) for pair in zip(waves, dropped, strict=True)]
        data["margins"] = {name: float(np.mean([row[name] for row in moved])) for name in moved[0]}
        data["margins"][LENGTH] = 100.0 * DROP_OUT_S
    return data


def _own_passages(own: OwnCase, count: int, seed: int) -> list[tuple[Any, int]]:
    return [(own.scripts[stream % len(own.scripts)], seed + stream) for stream in range(count)]


def _own_others(cell: Cell, run_dir: Path, own: OwnCase) -> list[np.ndarray]:
    """Speech of the reference under noise of its own; made once per run and kept in its folder."""
    count, seed = cell.options.streams, cell.options.seed
    built_case = built(cell.case, cell.size, device=cell.device, seed=seed)
    path = run_dir / "streams" / f"other-sound.{digest_of(cell.case, built_case)[:12]}.{count}.{seed}.npz"

    def spoken() -> dict[str, np.ndarray]:
        passages = _own_passages(own, count, seed + _OTHER_NOISE)
        waves, _ = said(replace(cell, mode="eager"), "reference", own, passages)
        return {"samples": np.concatenate(waves), "ends": np.cumsum([len(wave) for wave in waves])}

    stored = kept_arrays(path, spoken)
    return np.split(stored["samples"], stored["ends"][:-1])


def _from_other(other: np.ndarray, wave: np.ndarray, rate_hz: int) -> dict[str, float]:
    """Distances over what two renderings have in common, by how many per cent their lengths differ."""
    common = min(len(other), len(wave))
    if common < rate_hz * SHORTEST_S:
        raise UnsupportedError(f"synthesize made {common / rate_hz:.3f} s of sound; expected {SHORTEST_S} s or more")
    found = distances(other[:common], wave[:common], rate_hz=rate_hz)
    found[LENGTH] = 100.0 * abs(len(wave) - len(other)) / len(other)
    return found


def _with_drop_outs(wave: np.ndarray, *, rate_hz: int, seed: int) -> np.ndarray:
    """Silence 20 ms at a random place of each second."""
    rng, length, result = np.random.default_rng(seed), round(DROP_OUT_S * rate_hz), wave.copy()
    for start in range(0, len(wave), rate_hz):
        first = start + int(rng.integers(max(1, min(rate_hz, len(wave) - start) - length)))
        result[first : first + length] = 0.0
    return result


def _originals(run_dir: Path, streams: Sequence[Stream], n_frames: int) -> np.ndarray:
    """Original speech of the passages; made once per run and kept in its folder."""
    made_of = "".join(sha256_of(asset_path(f"{name}.safetensors")) for name in ("scripts", "codec", "vocoder"))
    digest = hashlib.sha256(made_of.encode()).hexdigest()[:12]
    path = run_dir / "streams" / f"original-sound.{digest}.{len(streams)}x{n_frames}.npz"
    kept = kept_arrays(path, lambda: {"samples": waveforms(original_tokens(streams, n_frames=n_frames))})
    return kept["samples"]
