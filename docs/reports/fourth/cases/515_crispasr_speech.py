"""https://github.com/CrispStrobe/CrispASR/issues/122, 2026.
voxcpm2-tts through /v1/audio/speech sounds distorted, while the command line gives a good file."""
import sys
import numpy as np
import soundfile as sf


def voice(sr, seconds=3.0):
    rng = np.random.default_rng(0)
    t = np.arange(int(sr * seconds)) / sr
    f0 = 130 + 25 * np.sin(2 * np.pi * 0.7 * t)
    phase = 2 * np.pi * np.cumsum(f0) / sr
    x = sum(np.sin(k * phase) / k * np.exp(-((k * 130 - 700) / 1500) ** 2) for k in range(1, 40))
    env = np.clip(np.sin(2 * np.pi * 2.3 * t), 0, None) ** 0.5
    return 0.25 * x * env / np.abs(x).max() * 2 + 0.003 * rng.standard_normal(t.size) * env


folder = sys.argv[1]
pcm = voice(48000)
sf.write(f"{folder}/reference.wav", pcm, 48000, subtype="PCM_16")
sf.write(f"{folder}/degraded.wav", pcm, 24000, subtype="PCM_16")
