"""https://github.com/cloudflare/agents/issues/1736 (2026)

The agent's voice clicks at the rate of its audio chunks; a steady tone makes it unmistakable.
"""
import sys
from pathlib import Path

import numpy as np
import soundfile

RATE, CHUNK, GAP = 24000, 7680, 128  # chunks of 320 ms, 5.33 ms until the next one is scheduled


def voice(seconds=5.0):
    t = np.arange(int(seconds * RATE)) / RATE
    phase = 2 * np.pi * np.cumsum(150 + 30 * np.sin(2 * np.pi * 0.6 * t)) / RATE
    tone = sum(np.sin(k * phase + k) / k for k in range(1, 14))
    return 0.2 * tone * (0.6 + 0.4 * np.sin(2 * np.pi * 0.9 * t))


def wavs():
    pcm = (voice() * 32767).astype(np.int16)
    chunks = [pcm[i : i + CHUNK] for i in range(0, len(pcm), CHUNK)]
    played = [chunks[0]]
    for chunk in chunks[1:]:
        played += [np.zeros(GAP, dtype=np.int16), chunk]
    return (pcm, RATE), (np.concatenate(played), RATE)


def write(folder):
    for name, (samples, rate) in zip(("reference", "degraded"), wavs(), strict=True):
        soundfile.write(Path(folder) / f"{name}.wav", samples, rate)


if __name__ == "__main__":
    write(sys.argv[1])
