"""Long synthesis under a condition, streamed to a WAV in constant memory.

Conventions: 16 kHz mono float32 WAV, the prompt left out, so sample 0 is the first frame that the model made; tokens
beside it as ``.npy``. The codec and the vocoder always run in float32 (numpy): what differs between two files is the
model's doing. Speeds are frames per CPU second of one thread, since other cells may run beside this one; latency
proper is measured elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from precision_eval.cases.voice.assets import asset_path, load_streams, sha256_of
from precision_eval.cases.voice.codec import FRAME_RATE_HZ, HOP_SAMPLES, N_CODEBOOKS, SAMPLE_RATE_HZ, Codec
from precision_eval.cases.voice.conditions import noise_seed, opened
from precision_eval.cases.voice.synthesis import free_run
from precision_eval.cases.voice.vocoder import StreamingVocoder
from precision_eval.core.cells import Cell
from precision_eval.core.files import UnwritableFileError, written_whole

PROMPT_FRAMES = 200  # 4 s
_CHUNK_FRAMES = 100
_BYTES_PER_SAMPLE = 4


def synthesise(
    condition: str, *, minutes: float, seed: int, wav_path: Path, mode: str, device: str, checkpoint_dtype: str
) -> dict[str, Any]:
    """Speak the held-out script of stream 0 for a while."""
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
    from precision_eval.measure.decoding import synthesised

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
