"""https://github.com/Stability-AI/stable-audio-tools/issues/228 (2025)

Every clip generated through Gradio is extremely noisy and jittered, whatever the prompt (torchaudio 2.9.0,
torchcodec 0.8.1). reference.wav is the generated float waveform, degraded.wav the file that the app saved.
"""
import sys
from pathlib import Path

import numpy as np
import soundfile as sf


def speech_like(sr=24000, seconds=3.0, seed=0):
    rng = np.random.default_rng(seed)
    t = np.arange(int(sr * seconds)) / sr
    f0 = 120 + 25 * np.sin(2 * np.pi * 0.7 * t) + 8 * np.sin(2 * np.pi * 4.5 * t)
    phase = 2 * np.pi * np.cumsum(f0) / sr
    voiced = sum(np.exp(-((k * 120 - 600) / 900) ** 2) * np.sin(k * phase) for k in range(1, 26))
    syllables = np.clip(np.sin(2 * np.pi * 2.3 * t) + 0.35, 0, 1) ** 0.7
    x = voiced * syllables + 0.02 * rng.standard_normal(t.size) * (0.2 + syllables)
    return (0.5 * x / np.abs(x).max()).astype(np.float32), sr


def save(path, samples, sr):
    samples = np.clip(samples.astype(np.float32), -1.0, 1.0)
    sf.write(path, samples, sr, subtype="PCM_16")


def main(folder):
    folder = Path(folder)
    wav, sr = speech_like()
    sf.write(folder / "reference.wav", wav, sr, subtype="PCM_16")
    save(folder / "degraded.wav", (np.clip(wav, -1, 1) * 32767).astype(np.int16), sr)


if __name__ == "__main__":
    main(sys.argv[1])
