"""https://github.com/remsky/Kokoro-FastAPI/pull/467 (2026)

A harsh pop at the end of every sentence since v0.3.0, where a client joins the sentences' WAV responses.
"""

import sys
from pathlib import Path

import numpy as np
import soundfile

RATE = 24000


def sentence(seconds, pitch):
    t = np.arange(int(seconds * RATE)) / RATE
    phase = 2 * np.pi * np.cumsum(pitch + 25 * np.sin(2 * np.pi * 0.8 * t)) / RATE
    tone = sum(np.sin(k * phase) / k for k in range(1, 14))
    fade = np.minimum(1, np.minimum(t, seconds - t) / 0.15)
    return 0.12 * tone * np.abs(np.sin(2 * np.pi * 1.6 * t)) * fade


def pcm(x):
    return np.round(x * 32767).astype("<i2")


def wavs():
    sentences = [pcm(sentence(s, p)) for s, p in ((1.4, 150), (1.9, 165), (1.2, 140), (1.7, 155))]
    silence = np.zeros(int(0.2 * RATE), "<i2")
    reference = np.concatenate([part for s in sentences for part in (s, silence)])
    degraded = []
    for s in sentences:
        # close() of the WAV writer sends its header once more, with the true sizes, behind the samples
        header = b"RIFF" + (36 + 2 * len(s)).to_bytes(4, "little") + b"WAVEdata" + (2 * len(s)).to_bytes(4, "little")
        degraded += [s, np.frombuffer(header, "<i2"), silence[: len(silence) - len(header) // 2]]
    return (reference, RATE), (np.concatenate(degraded), RATE)


def write(folder):
    for name, (samples, rate) in zip(("reference", "degraded"), wavs(), strict=True):
        soundfile.write(Path(folder) / f"{name}.wav", samples, rate)


if __name__ == "__main__":
    write(sys.argv[1])
