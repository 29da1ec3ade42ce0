"""Long synthesis under a condition, streamed to a WAV in constant memory.

Conventions: 16 kHz mono float32 WAV, the prompt left out, so sample 0 is the first frame that the model made; tokens
beside it as ``.npy``. The codec and the vocoder always run in float32 (numpy): what differs between two files is the
model's doing. Speeds are frames per CPU second of one thread, since other cells may run beside this one; latency
proper is measured elsewhere.

Contents: :func:`synthesise`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from precision_eval.errors import PrecisionEvalError
from precision_eval.voice.assets import asset_path, load_streams, sha256_of
from precision_eval.voice.codec import FRAME_RATE_HZ, N_CODEBOOKS, SAMPLE_RATE_HZ, Codec
from precision_eval.voice.conditions import noise_seed, opened
from precision_eval.voice.synthesis import free_run
from precision_eval.voice.vocoder import StreamingVocoder

PROMPT_FRAMES = 200  # 4 s
_CHUNK_FRAMES = 100


def synthesise(
    condition: str, *, minutes: float, seed: int, wav_path: Path, mode: str, device: str, checkpoint_dtype: str
) -> dict[str, Any]:
    """Speak the held-out script of stream 0 for a while.

    Parameters
    ----------
    condition : str
        Id of a fix or of a reference.
    minutes : float
        Of audio, the prompt not counted.
    seed : int
        Of the sampling noise; the null adds its own offset.
    wav_path : Path
        Written whole or not at all; the tokens go beside it.
    mode, device, checkpoint_dtype : str
        See :func:`precision_eval.voice.conditions.opened`.

    Returns
    -------
    dict
        ``duration_s``, ``frames_per_s``, ``real_time_factor`` (model, codec and vocoder together, CPU time),
        ``sha256`` of the tokens.
    """
    import soundfile

    n_frames = round(minutes * 60 * FRAME_RATE_HZ)
    streams = load_streams(1, n_frames=PROMPT_FRAMES + n_frames)
    codec = Codec.load(asset_path("codec.safetensors"))
    wav_path.parent.mkdir(parents=True, exist_ok=True)
    partial, partial_tokens = wav_path.with_suffix(".partial"), wav_path.with_suffix(".partial-tokens")
    tokens = np.lib.format.open_memmap(partial_tokens, mode="w+", dtype=np.uint8, shape=(n_frames, N_CODEBOOKS))
    cpu_start_s = time.process_time()
    try:
        with (
            opened(condition, n_streams=1, mode=mode, device=device, checkpoint_dtype=checkpoint_dtype) as decoder,
            soundfile.SoundFile(partial, "w", SAMPLE_RATE_HZ, 1, subtype="FLOAT", format="WAV") as wav,
        ):
            vocoder = StreamingVocoder()
            frames = free_run(
                decoder, streams, prompt_frames=PROMPT_FRAMES, n_frames=n_frames, seed=noise_seed(condition, seed)
            )
            for index, frame in enumerate(frames):
                tokens[index] = frame[0]
                if (index + 1) % _CHUNK_FRAMES == 0 or index + 1 == n_frames:
                    first = index - index % _CHUNK_FRAMES
                    wav.write(vocoder.push(codec.decode(tokens[first : index + 1])))
            wav.write(vocoder.flush())
        cpu_s = time.process_time() - cpu_start_s
        tokens.flush()
        partial.replace(wav_path)
        partial_tokens.replace(wav_path.with_suffix(".npy"))
    except (PrecisionEvalError, RuntimeError, OSError):
        partial.unlink(missing_ok=True)
        partial_tokens.unlink(missing_ok=True)
        raise
    return {
        "duration_s": n_frames / FRAME_RATE_HZ,
        "frames_per_s": n_frames / cpu_s,
        "real_time_factor": n_frames / FRAME_RATE_HZ / cpu_s,
        "clock": "process CPU",
        "sha256": sha256_of(wav_path.with_suffix(".npy")),
    }
