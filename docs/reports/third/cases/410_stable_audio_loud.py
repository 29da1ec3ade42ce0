"""https://github.com/Comfy-Org/ComfyUI/issues/4933 (2024)
Music and loud effects made with Stable Audio come out heavily saturated; quiet ones are fine.
"""
import sys
from pathlib import Path

import numpy as np
import soundfile as sf


def voice(rng, sr, seconds):
    t = np.arange(int(sr * seconds)) / sr
    f0 = 130 + 25 * np.sin(2 * np.pi * 0.7 * t) + 8 * np.sin(2 * np.pi * 2.3 * t)
    phase = 2 * np.pi * np.cumsum(f0) / sr
    wave = sum(np.sin(k * phase + rng.uniform(0, 6)) / k ** 1.1 for k in range(1, 24))
    syllable = np.clip(np.sin(2 * np.pi * 2.9 * t + 0.4), 0, None) ** 0.7
    breath = rng.standard_normal(len(t)) * 0.05 * (0.3 + syllable)
    return (wave * syllable + breath) / 4


def main(folder):
    sr = 44100
    audio = voice(np.random.default_rng(3), sr, 3.5) * 6.0
    reference = audio / max(1.0, np.abs(audio).max())
    sf.write(Path(folder) / "reference.wav", reference, sr, subtype="PCM_16")
    pcm = np.clip(audio * 32767, -32768, 32767).astype(np.int16)
    sf.write(Path(folder) / "degraded.wav", pcm, sr, subtype="PCM_16")


if __name__ == "__main__":
    main(sys.argv[1])
