"""https://github.com/vllm-project/vllm/pull/43322 (2026; issue 40095)

Gemma 4 audio input: a 16 kHz WAV is transcribed into hallucinated text, the same recording at another
rate (which goes through the resampler) is transcribed properly.
"""
import torch
from torch import nn


class AudioMediaIO:
    def __init__(self, rate=16000):
        self.rate = rate

    def load_audio_pyav(self, frames, native_sr):
        chunks = []
        for frame in frames:
            if native_sr != self.rate:
                frame = nn.functional.interpolate(frame.float()[None, None] / 32768.0, scale_factor=self.rate / native_sr)[0, 0]
            chunks.append(frame)
        return torch.cat(chunks).to(torch.float32)


class Gemma4AudioFeatures(nn.Module):
    def __init__(self, mels=32):
        super().__init__()
        self.io = AudioMediaIO()
        self.register_buffer("window", torch.hann_window(400))
        self.register_buffer("filters", torch.rand(201, mels) / 201)
        self.encoder = nn.Sequential(nn.Linear(mels, 64), nn.Tanh(), nn.Linear(64, 16))

    def forward(self, frames):
        audio = self.io.load_audio_pyav(frames, native_sr=16000)
        spec = torch.stft(audio, 400, 160, window=self.window, return_complex=True).abs().T
        return self.encoder(torch.log(spec @ self.filters + 1e-3))


def factory():
    torch.manual_seed(0)
    t = torch.arange(16000) / 16000
    voice = sum(torch.sin(6.2832 * 140 * k * t) / k for k in range(1, 12)) * (0.5 + 0.5 * torch.sin(6.2832 * 3 * t))
    pcm = (voice / voice.abs().max() * 0.6 * 32767).to(torch.int16)
    return Gemma4AudioFeatures().eval(), (list(pcm.split(1600)),)
