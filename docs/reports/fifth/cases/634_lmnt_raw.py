"""https://github.com/AreevAI/flowcat/issues/18 (2026)

A test call with LMNT as the voice plays a loud high-pitched buzz instead of speech. reference.wav is the sentence that
LMNT spoke, degraded.wav what the caller heard.
"""
import sys
from pathlib import Path

import numpy as np
import soundfile as sf

SR = 24000


def lmnt_response(audio_format, seconds=3.0, seed=0):
    rng = np.random.default_rng(seed)
    t = np.arange(int(SR * seconds)) / SR
    f0 = 190 + 30 * np.sin(2 * np.pi * 0.8 * t)
    phase = 2 * np.pi * np.cumsum(f0) / SR
    x = sum(np.exp(-((k * 190 - 750) / 1100) ** 2) * np.sin(k * phase) for k in range(1, 21))
    gate = np.clip(1.5 * np.sin(2 * np.pi * 1.8 * t) + 0.4, 0, 1)
    x = x * gate + 0.01 * rng.standard_normal(t.size) * (0.1 + gate)
    x = 0.5 * x / np.abs(x).max()
    return x.astype("<f4").tobytes() if audio_format == "raw" else (x * 32767).astype("<i2").tobytes()


def tts_frames(body, frame=960):
    for start in range(0, len(body), frame):
        yield np.frombuffer(body[start:start + frame], dtype="<i2")


def main(folder):
    heard = np.concatenate(list(tts_frames(lmnt_response("raw"))))
    spoken = np.frombuffer(lmnt_response("wav"), dtype="<i2")
    sf.write(Path(folder) / "reference.wav", spoken, SR, subtype="PCM_16")
    sf.write(Path(folder) / "degraded.wav", heard, SR, subtype="PCM_16")


if __name__ == "__main__":
    main(sys.argv[1])
