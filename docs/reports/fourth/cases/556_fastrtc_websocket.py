"""https://github.com/gradio-app/fastrtc/issues/284 (2025)

Audio that goes through the websocket handler is distorted and speech detection on
it is very bad; the handler was made with input_sample_rate 24000.
"""
import os
import sys
import numpy as np
import soundfile as sf


def speech(rate, seconds=3.5, seed=1):
    rng = np.random.default_rng(seed)
    t = np.arange(int(rate * seconds)) / rate
    phase = 2 * np.pi * np.cumsum(170 + 30 * np.sin(2 * np.pi * 0.5 * t)) / rate
    voiced = sum(np.sin(k * phase) / k ** 0.8 for k in range(1, 40))
    gate = (np.sin(2 * np.pi * 1.3 * t) > -0.2).astype(float)
    gate = np.convolve(gate, np.hanning(801) / np.hanning(801).sum(), "same")
    hiss = np.diff(rng.standard_normal(t.size + 1)) * (1 - gate) * 0.9
    x = voiced * gate + hiss
    return 0.6 * x / np.abs(x).max()


def resample(x, src, dst):
    n = int(round(x.size * dst / src))
    spec = np.fft.rfft(x)
    out = np.zeros(n // 2 + 1, complex)
    m = min(out.size, spec.size)
    out[:m] = spec[:m]
    return np.fft.irfft(out, n) * (n / x.size)


def main(folder):
    rate = 24000
    sent = speech(rate)
    received = resample(resample(sent, rate, 8000), 8000, rate)
    sf.write(os.path.join(folder, "reference.wav"), sent, rate, subtype="PCM_16")
    sf.write(os.path.join(folder, "degraded.wav"), received, rate, subtype="PCM_16")


if __name__ == "__main__":
    main(sys.argv[1])
