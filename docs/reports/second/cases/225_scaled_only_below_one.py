"""https://github.com/Blaizzy/mlx-audio-swift/pull/256 (2026)

FireRedASR2 decodes over half of a podcast's segments to nothing where the AAC decoder overshoots 1.0; the same audio
from ffmpeg (peak 0.99997) is fine.
"""

import torch
from torch import nn


class KaldiFbank(nn.Module):
    """The recipe expects samples on the scale of int16."""

    def __init__(self, n_mels=40, n_fft=256, hop=128):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        edges = torch.linspace(0, 1, n_mels + 2)
        bins = torch.linspace(0, 1, n_fft // 2 + 1)
        up = (bins[:, None] - edges[None, :-2]) * (n_mels + 1)
        down = (edges[None, 2:] - bins[:, None]) * (n_mels + 1)
        self.register_buffer("filters", torch.minimum(up, down).clamp_min(0))

    def forward(self, wave):
        if wave.abs().max() <= 1.0:
            wave = wave * 32768.0
        frames = wave.unfold(-1, self.n_fft, self.hop) * torch.hann_window(self.n_fft)
        power = torch.fft.rfft(frames).abs() ** 2
        return (power @ self.filters).clamp_min(1.1920929e-07).log()


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.fbank = KaldiFbank()
        self.register_buffer("cmvn_mean", torch.full((40,), 17.0))
        self.register_buffer("cmvn_istd", torch.full((40,), 0.25))
        self.proj = nn.Linear(40, 64)
        self.head = nn.Linear(64, 30)

    def forward(self, wave):
        features = (self.fbank(wave) - self.cmvn_mean) * self.cmvn_istd
        return self.head(torch.relu(self.proj(features))).log_softmax(-1)


def factory():
    wave = 0.3 * torch.randn(1, 4096)
    wave[0, 777] = 1.018  # an overshoot of the lossy decoder
    return Encoder().eval(), (wave,)
