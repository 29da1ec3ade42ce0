"""https://github.com/NousResearch/hermes-agent/pull/70851 (2026)

Streaming speech playback: the text is complete, but only scattered fragments of each sentence are heard, some
parts play properly and others are silently lost.
"""
import sys
from pathlib import Path

import numpy as np
import soundfile as sf


def speech(rate, seconds=4.0, seed=11):
    rng, t = np.random.default_rng(seed), np.arange(int(rate * seconds)) / rate
    f0 = 118 + 18 * np.sin(2 * np.pi * 0.45 * t) + 6 * np.sin(2 * np.pi * 1.7 * t)
    phase = 2 * np.pi * np.cumsum(f0) / rate
    f1, f2 = 520 + 220 * np.sin(2 * np.pi * 1.3 * t), 1500 + 600 * np.sin(2 * np.pi * 0.9 * t + 1)
    voice = sum(np.sin(k * phase) * (np.exp(-((k * f0 - f1) / 180) ** 2) + 0.5 * np.exp(-((k * f0 - f2) / 260) ** 2)
                                     + 0.12 * np.exp(-((k * f0 - 2700) / 400) ** 2)) for k in range(1, 32))
    syllable = np.clip(np.sin(2 * np.pi * 2.1 * t + np.sin(2 * np.pi * 0.5 * t)), 0, None) ** 0.7
    hiss = np.diff(rng.standard_normal(t.size), prepend=0) * np.clip(np.sin(2 * np.pi * 1.05 * t + 3) - 0.6, 0, None)
    x = voice * syllable + 0.25 * hiss + 0.0005 * rng.standard_normal(t.size)
    return 0.6 * x / np.abs(x).max()


def main(folder, rate=24000):
    pcm = (speech(rate) * 32767).astype("<i2").tobytes()
    sizes, chunks, at = [4096, 4096, 4063, 4129, 4096, 8192, 2047, 6145, 4096], [], 0
    while at < len(pcm):
        chunks.append(pcm[at:at + sizes[len(chunks) % len(sizes)]])
        at += len(chunks[-1])
    played = []
    for chunk in chunks:
        try:
            played.append(np.frombuffer(chunk, dtype=np.int16))
        except ValueError as exc:
            print("warning: chunk skipped:", exc)
    sf.write(folder / "reference.wav", np.frombuffer(pcm, dtype=np.int16), rate)
    sf.write(folder / "degraded.wav", np.concatenate(played), rate)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
