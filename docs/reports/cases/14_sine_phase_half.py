# hexgrad/kokoro#353: in half precision the harmonic source scrambles within seconds: buzz in place of a voice
# answer: the phase accumulates without bound and outgrows float16's step; keep it in float32, wrapped to one turn
import torch
from torch import nn


class SineGen(nn.Module):
    def __init__(self, rate=24000, harmonics=9):
        super().__init__()
        self.rate = rate
        self.register_buffer("multiples", torch.arange(1.0, harmonics + 1))

    def forward(self, f0):
        turns = f0[..., None] / self.rate * self.multiples
        phase = torch.cumsum(turns, dim=1) * 2 * torch.pi
        return torch.sin(phase)


class Source(nn.Module):
    def __init__(self):
        super().__init__()
        self.sine = SineGen()
        self.merge = nn.Linear(9, 1)

    def forward(self, f0):
        return torch.tanh(self.merge(0.1 * self.sine(f0)))


def factory():
    f0 = 200 + 20 * torch.sin(torch.linspace(0, 24, 24000))
    return Source().half().eval(), (f0[None].half(),)
