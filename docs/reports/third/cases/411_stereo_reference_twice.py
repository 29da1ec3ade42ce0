"""https://github.com/Comfy-Org/ComfyUI/pull/15177 (2026)
A stereo clip given to the ByteDance Seed Audio node as voice reference is uploaded with
exactly double duration (8.34 s become 16.68 s) and is heard twice; mono clips are right.
"""
import sys
from pathlib import Path

import numpy as np
import soundfile as sf


def voice(rng, sr, seconds):
    t = np.arange(int(sr * seconds)) / sr
    f0 = 190 + 30 * np.sin(2 * np.pi * 0.5 * t) + 6 * np.sin(2 * np.pi * 3.1 * t)
    phase = 2 * np.pi * np.cumsum(f0) / sr
    wave = sum(np.sin(k * phase + rng.uniform(0, 6)) / k for k in range(1, 20))
    syllable = np.clip(np.sin(2 * np.pi * 3.3 * t), 0, None) ** 0.6
    return 0.25 * wave * syllable + 0.01 * rng.standard_normal(len(t)) * syllable


def encode(waveform):
    return waveform.reshape(1, -1)


def main(folder):
    sr = 32000
    rng = np.random.default_rng(8)
    left = voice(rng, sr, 2.6)
    right = 0.8 * left + 0.02 * rng.standard_normal(len(left))
    waveform = np.stack([left, right])[None]
    sf.write(Path(folder) / "reference.wav", waveform[0].T, sr, subtype="PCM_16")
    sf.write(Path(folder) / "degraded.wav", encode(waveform)[0], sr, subtype="PCM_16")


if __name__ == "__main__":
    main(sys.argv[1])
