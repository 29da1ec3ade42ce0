"""https://github.com/uezo/aiavatarkit/pull/339 (2026)

Popping noise in the voice on the phone (Twilio, 8 kHz mu-law). degraded.wav is what the call plays,
reference.wav the same synthesized sentences as they should sound.
"""
import io
import sys
from pathlib import Path

import numpy as np
import soundfile as sf


def synthesize(number, rate=16000):
    rng = np.random.default_rng(number)
    t = np.arange(int(rate * (0.4 + 0.05 * (number % 4)))) / rate
    f0 = 150 + 10 * (number % 3) + 20 * np.sin(2 * np.pi * 1.3 * t)
    phase = 2 * np.pi * np.cumsum(f0) / rate
    x = sum(np.exp(-((k * 150 - 650) / 800) ** 2) * np.sin(k * phase) for k in range(1, 20))
    x = x * np.sin(np.pi * t / t[-1]) ** 0.6 + 0.004 * rng.standard_normal(t.size)
    wav = io.BytesIO()
    sf.write(wav, 0.3 * x / np.abs(x).max(), rate, subtype="PCM_16", format="WAV")
    return wav.getvalue()


def mulaw(samples):
    x = samples / 32768.0
    code = np.round(np.sign(x) * np.log1p(255 * np.abs(x)) / np.log(256) * 127)
    return np.sign(code) * np.expm1(np.abs(code) / 127 * np.log(256)) / 255


def send_voice(audio_data):
    samples = np.frombuffer(audio_data, dtype="<i2")
    return mulaw(samples[::2])


def main(folder):
    folder = Path(folder)
    sentences = [synthesize(n) for n in range(9)]
    pcm = [sf.read(io.BytesIO(s), dtype="int16")[0].tobytes() for s in sentences]
    sf.write(folder / "reference.wav", np.concatenate([send_voice(p) for p in pcm]), 8000, subtype="PCM_16")
    sf.write(folder / "degraded.wav", np.concatenate([send_voice(s) for s in sentences]), 8000, subtype="PCM_16")


if __name__ == "__main__":
    main(sys.argv[1])
