# sgl-project/sglang-omni#2262: a float32 DiT under bfloat16 autocast casts every weight again at every Euler step
# answer: autocast keeps no casts under inference mode; cast Linear and Conv1d once at load, the mel stays bit-equal
import torch
from torch import nn


class DiT(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Conv1d(80, 256, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)) for _ in range(3)
        )
        self.out = nn.Linear(256, 80)

    def forward(self, x, t):
        h = self.inp(x).transpose(1, 2) + t
        for block in self.blocks:
            h = h + block(h)
        return self.out(h).transpose(1, 2)


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.estimator = DiT()

    def forward(self, noise, steps=10):
        x = noise
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
            for i in range(steps):
                x = x + self.estimator(x, i / steps).float() / steps
        return x.clone()


def factory():
    return Flow().eval(), (torch.randn(1, 80, 64),)
