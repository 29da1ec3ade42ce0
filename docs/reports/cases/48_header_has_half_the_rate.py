# andimarafioti/faster-qwen3-tts#54: WAVs of the server sound too low and too slow
# answer: not a dtype fault: the header says 12000 Hz while the decoded PCM has 24000; report the tokenizer's own rate
import sys
from pathlib import Path

import numpy as np
import soundfile


def voice(rate, seconds=3.0):
    t = np.arange(int(seconds * rate)) / rate
    phase = 2 * np.pi * np.cumsum(160 + 25 * np.sin(2 * np.pi * 0.7 * t)) / rate
    tone = sum(np.sin(k * phase) / k for k in range(1, 16))
    return 0.25 * tone * np.abs(np.sin(2 * np.pi * 2.1 * t)) ** 0.7


def wavs():
    pcm = (voice(24000) * 32767).astype(np.int16)
    return (pcm, 24000), (pcm, 12000)


def write(folder):
    for name, (samples, rate) in zip(("reference", "degraded"), wavs(), strict=True):
        soundfile.write(Path(folder) / f"{name}.wav", samples, rate)


if __name__ == "__main__":
    write(sys.argv[1])
