"""https://github.com/Comfy-Org/ComfyUI/pull/15828 (2026)
Audio of a 5.1 video loaded into ComfyUI plays at one third of its speed in the preview and
in the saved file, which is three times as long; stereo and mono are right.
"""
import sys
from pathlib import Path

import numpy as np
import soundfile as sf


def voice(rng, sr, seconds, pitch):
    t = np.arange(int(sr * seconds)) / sr
    f0 = pitch + 20 * np.sin(2 * np.pi * 0.6 * t)
    phase = 2 * np.pi * np.cumsum(f0) / sr
    wave = sum(np.sin(k * phase + rng.uniform(0, 6)) / k for k in range(1, 18))
    syllable = np.clip(np.sin(2 * np.pi * 2.4 * t + rng.uniform(0, 1)), 0, None) ** 0.8
    return 0.2 * wave * syllable + 0.004 * rng.standard_normal(len(t))


def main(folder):
    sr = 48000
    rng = np.random.default_rng(21)
    dialog = voice(rng, sr, 2.5, 120)
    music = voice(rng, sr, 2.5, 220)
    channels = np.stack([0.5 * dialog + 0.3 * music, 0.5 * dialog + 0.25 * music, dialog,
                         0.1 * music, 0.3 * music, 0.3 * music])
    sf.write(Path(folder) / "reference.wav", channels.T, sr, subtype="PCM_16")
    flat = channels.T.reshape(-1)
    stereo_frames = flat.reshape(-1, 2)
    sf.write(Path(folder) / "degraded.wav", stereo_frames, sr, subtype="PCM_16")


if __name__ == "__main__":
    main(sys.argv[1])
