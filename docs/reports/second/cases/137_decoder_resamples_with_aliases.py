"""https://github.com/Blaizzy/mlx-audio/issues/870 (2026)

Since an update load_audio(path, sr=16000) transcribes 44.1 kHz recordings worse; nothing is reported.
"""
import sys
from pathlib import Path

import numpy as np
import soundfile
from scipy import signal

SOURCE, TARGET = 48000, 16000


def recording(seconds=3.0):
    t = np.arange(int(seconds * SOURCE)) / SOURCE
    phase = 2 * np.pi * np.cumsum(140 + 30 * np.sin(2 * np.pi * 0.5 * t)) / SOURCE
    voiced = 0.15 * sum(np.sin(k * phase) / k for k in range(1, 40)) * (np.sin(2 * np.pi * 1.3 * t) > 0)
    hiss = np.random.default_rng(3).standard_normal(len(t)) * (np.sin(2 * np.pi * 1.3 * t) <= -0.3)
    sibilants = signal.sosfilt(signal.butter(6, (8600, 14000), "bandpass", fs=SOURCE, output="sos"), hiss)
    return voiced + 0.3 * sibilants + 0.1 * np.sin(2 * np.pi * 12000 * t)


def wavs():
    x = recording()
    kept = signal.resample_poly(x, 1, SOURCE // TARGET, window=("kaiser", 12.0))
    # the decoder's default: a low-pass of fourth order at the new Nyquist frequency, then every third sample
    shallow = signal.sosfiltfilt(signal.butter(2, TARGET / 2, fs=SOURCE, output="sos"), x)[:: SOURCE // TARGET]
    return (kept.astype(np.float32), TARGET), (shallow.astype(np.float32), TARGET)


def write(folder):
    for name, (samples, rate) in zip(("reference", "degraded"), wavs(), strict=True):
        soundfile.write(Path(folder) / f"{name}.wav", samples, rate)


if __name__ == "__main__":
    write(sys.argv[1])
