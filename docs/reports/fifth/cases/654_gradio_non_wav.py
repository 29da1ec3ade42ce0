"""https://github.com/gradio-app/gradio/pull/13396 (2026)

gr.Audio with float32 data: format="wav" plays the speech, format="flac" (and mp3, ogg) is pure noise.
"""
import os
import sys
import numpy as np
import soundfile as sf


def voice(rate, seconds=3.0, seed=0):
    rng = np.random.default_rng(seed)
    t = np.arange(int(rate * seconds)) / rate
    f0 = 125 + 22 * np.sin(2 * np.pi * 0.8 * t)
    phase = 2 * np.pi * np.cumsum(f0) / rate
    x = sum(np.sin(k * phase + 0.3 * k) * np.exp(-((k * 125 - 600) / 900) ** 2) for k in range(1, 25))
    env = np.clip(np.sin(2 * np.pi * 1.6 * t), 0, 1) ** 0.7
    return 0.5 * x * env / np.abs(x).max() + 0.004 * env * rng.standard_normal(t.size)


class AudioSegment:
    def __init__(self, data, frame_rate, sample_width):
        self.samples = np.frombuffer(data, dtype={2: np.int16, 4: np.int32}[sample_width])
        self.frame_rate = frame_rate

    def export(self, filename):
        sf.write(filename, self.samples, self.frame_rate, subtype="PCM_16", format="WAV")


def convert_to_16_bit_wav(data):
    return (data / np.abs(data).max() * 32767).astype(np.int16)


def audio_to_file(sample_rate, data, filename, format="wav"):
    if format == "wav":
        data = convert_to_16_bit_wav(data)
    AudioSegment(data.tobytes(), frame_rate=sample_rate, sample_width=data.dtype.itemsize).export(filename)


def main(folder):
    rate = 24000
    speech = voice(rate).astype(np.float32)
    audio_to_file(rate, speech, os.path.join(folder, "reference.wav"))
    audio_to_file(rate, speech, os.path.join(folder, "degraded.wav"), format="flac")


if __name__ == "__main__":
    main(sys.argv[1])
