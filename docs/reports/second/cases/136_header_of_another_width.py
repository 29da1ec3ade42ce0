"""https://github.com/openai/openai-agents-python/pull/4361 (2026)

VoicePipelineConfig(sample_width=4) sends noise of half the length; with the default the recordings are right.
"""
import io
import sys
import wave
from pathlib import Path

import numpy as np

RATE = 24000


def voice(seconds=3.0):
    t = np.arange(int(seconds * RATE)) / RATE
    phase = 2 * np.pi * np.cumsum(170 + 25 * np.sin(2 * np.pi * 0.6 * t)) / RATE
    syllables = np.clip(np.sin(2 * np.pi * 1.7 * t), 0, None) ** 0.5
    return 0.2 * sum(np.sin(k * phase) / k for k in range(1, 14)) * syllables


def audio_to_file(samples, sample_width):
    frames = (np.clip(samples, -1, 1) * 32767).astype(np.int16)
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as wav:
        wav.setnchannels(1)
        wav.setsampwidth(sample_width)
        wav.setframerate(RATE)
        wav.writeframes(frames.tobytes())
    return buffer.getvalue()


def write(folder):
    for name, width in (("reference", 2), ("degraded", 4)):
        (Path(folder) / f"{name}.wav").write_bytes(audio_to_file(voice(), width))


if __name__ == "__main__":
    write(sys.argv[1])
