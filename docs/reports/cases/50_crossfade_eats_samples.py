# sgl-project/sglang-omni#1678: the streamed voice runs ahead: 512 samples are missing at each of 13 seams
# answer: not a dtype fault: the crossfade blends adjacent spans, not the same span twice; blend the re-decoded overlap
import sys
from pathlib import Path

import numpy as np
import soundfile

RATE, CROSSFADE, CHUNKS = 24000, 512, 14


def voice(seconds=7.0):
    t = np.arange(int(seconds * RATE)) / RATE
    phase = 2 * np.pi * np.cumsum(120 + 35 * np.sin(2 * np.pi * 0.4 * t)) / RATE
    tone = sum(np.sin(k * phase) / k for k in range(1, 14))
    noise = np.random.default_rng(1).standard_normal(len(t))
    return 0.2 * tone * np.abs(np.sin(2 * np.pi * 1.1 * t)) + 0.002 * noise


def wavs():
    x = voice()
    pieces = np.array_split(x, CHUNKS)
    ramp = np.linspace(0, 1, CROSSFADE)
    out, tail = [pieces[0][:-CROSSFADE]], pieces[0][-CROSSFADE:]
    for piece in pieces[1:]:
        out.append(tail * (1 - ramp) + piece[:CROSSFADE] * ramp)
        out.append(piece[CROSSFADE:-CROSSFADE])
        tail = piece[-CROSSFADE:]
    return (x.astype(np.float32), RATE), (np.concatenate([*out, tail]).astype(np.float32), RATE)


def write(folder):
    for name, (samples, rate) in zip(("reference", "degraded"), wavs(), strict=True):
        soundfile.write(Path(folder) / f"{name}.wav", samples, rate)


if __name__ == "__main__":
    write(sys.argv[1])
