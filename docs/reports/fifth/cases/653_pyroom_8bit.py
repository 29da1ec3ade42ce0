"""https://github.com/LCAV/pyroomacoustics/pull/440 (2026)

create_noisy_signal on an 8-bit WAV file: the noisy signal is unusable; a 16-bit copy of the file works.
"""
import os
import sys
import numpy as np
import soundfile as sf


def voice(rate, seconds=3.0, seed=0):
    rng = np.random.default_rng(seed)
    t = np.arange(int(rate * seconds)) / rate
    f0 = 140 + 30 * np.sin(2 * np.pi * 0.6 * t)
    phase = 2 * np.pi * np.cumsum(f0) / rate
    x = sum(np.sin(k * phase) * np.exp(-((k * 140 - 700) / 800) ** 2) / k ** 0.4 for k in range(1, 25))
    env = np.clip(np.sin(2 * np.pi * 1.9 * t), 0, 1) ** 0.6
    return 0.7 * x * env / np.abs(x).max() + 0.003 * env * rng.standard_normal(t.size)


def to_float32(data):
    if np.issubdtype(data.dtype, np.integer):
        max_val = abs(np.iinfo(data.dtype).min)
        return data.astype(np.float32) / max_val
    return data.astype(np.float32)


def create_noisy_signal(data, snr=40.0, seed=1):
    clean = to_float32(data)
    noise = np.random.default_rng(seed).standard_normal(clean.size).astype(np.float32)
    std = np.linalg.norm(clean) / np.sqrt(clean.size) * 10 ** (-snr / 20)
    return clean + std * noise


def main(folder):
    rate = 16000
    speech = voice(rate)
    pcm_u8 = np.clip(np.round(speech * 128) + 128, 0, 255).astype(np.uint8)
    pcm_16 = ((pcm_u8.astype(np.int32) - 128) * 256).astype(np.int16)
    sf.write(os.path.join(folder, "reference.wav"), create_noisy_signal(pcm_16), rate, subtype="FLOAT")
    sf.write(os.path.join(folder, "degraded.wav"), create_noisy_signal(pcm_u8), rate, subtype="FLOAT")


if __name__ == "__main__":
    main(sys.argv[1])
