"""Sound for the benchmarks: made here and seeded, or spoken by the shipped voice and kept in a folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile

SAMPLE_RATE_HZ = 24_000
_CHUNK_S = 60


def speech_like(seconds: int, *, seed: int, dtype: str = "float32", start_s: int = 0) -> np.ndarray:
    """Harmonics with a moving pitch, noise and an envelope with soft pauses, shape (n,), some −25 dB re full scale."""
    rng = np.random.default_rng([seed, start_s])
    n = seconds * SAMPLE_RATE_HZ
    t = start_s + np.arange(n) / SAMPLE_RATE_HZ
    phase = 2 * np.pi * 120 * t - 30 / 0.7 * np.cos(2 * np.pi * 0.7 * t + seed)
    voice = sum(np.sin(k * phase) / k for k in range(1, 16))
    envelope = 0.05 + np.clip(np.sin(2 * np.pi * 1.1 * t + seed), 0, 1)
    return (0.05 * envelope * (voice + 0.3 * rng.standard_normal(n))).astype(dtype)


def write_pair(folder: Path, *, minutes: int) -> tuple[Path, Path]:
    """Write a pair of float32 WAV files, the second with noise 40 dB down; kept when they are there already."""
    paths = folder / f"reference-{minutes}min.wav", folder / f"estimate-{minutes}min.wav"
    if all(path.exists() for path in paths):
        return paths
    folder.mkdir(parents=True, exist_ok=True)
    partial = [path.with_suffix(".partial") for path in paths]
    options = {"samplerate": SAMPLE_RATE_HZ, "channels": 1, "subtype": "FLOAT", "format": "WAV"}
    with (
        soundfile.SoundFile(partial[0], "w", **options) as first,
        soundfile.SoundFile(partial[1], "w", **options) as last,
    ):
        for start_s in range(0, 60 * minutes, _CHUNK_S):
            samples = speech_like(_CHUNK_S, seed=1, start_s=start_s)
            noise = np.random.default_rng([2, start_s]).standard_normal(len(samples))
            first.write(samples)
            last.write(samples + (0.01 * samples.std() * noise).astype(np.float32))
    for source, target in zip(partial, paths, strict=True):
        source.replace(target)
    return paths


def spoken(folder: Path, *, minutes: int, seed: int) -> list[Path]:
    """Let the shipped voice read its twelve held-out scripts, float32 model; one WAV per speaker, kept in `folder`."""
    from precision_eval.cases.voice.assets import asset_path, load_streams
    from precision_eval.cases.voice.codec import FRAME_RATE_HZ, Codec
    from precision_eval.cases.voice.codec import SAMPLE_RATE_HZ as VOICE_RATE_HZ
    from precision_eval.cases.voice.conditions import opened
    from precision_eval.cases.voice.synthesis import free_run
    from precision_eval.cases.voice.vocoder import StreamingVocoder

    n_speakers, prompt, n_frames = 12, 200, minutes * 60 * FRAME_RATE_HZ
    paths = [folder / f"speaker-{speaker}-seed-{seed}-{minutes}min.wav" for speaker in range(n_speakers)]
    if all(path.exists() for path in paths):
        return paths
    folder.mkdir(parents=True, exist_ok=True)
    streams = load_streams(n_speakers, n_frames=prompt + n_frames)
    with opened(
        "full_float32", n_streams=n_speakers, mode="eager", device="cpu", checkpoint_dtype="float32"
    ) as decoder:
        tokens = np.stack(list(free_run(decoder, streams, prompt_frames=prompt, n_frames=n_frames, seed=seed)))
    codec = Codec.load(asset_path("codec.safetensors"))
    for speaker, path in enumerate(paths):
        vocoder = StreamingVocoder()
        chunks = [vocoder.push(codec.decode(tokens[i : i + 100, speaker])) for i in range(0, n_frames, 100)]
        samples = np.concatenate([*chunks, vocoder.flush()]).astype(np.float32)
        partial = path.with_suffix(".partial")
        soundfile.write(partial, samples, VOICE_RATE_HZ, subtype="FLOAT", format="WAV")
        partial.replace(path)
    return paths
