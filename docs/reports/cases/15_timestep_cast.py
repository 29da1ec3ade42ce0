# modelscope/DiffSynth-Studio#1025: Wan in bfloat16: timestep 998.39 becomes 1000 before its sinusoid; worse samples
# answer: keep the timestep in float32 and cast the embedding to x.dtype only before the time MLP
import torch
from torch import nn


def sinusoidal_embedding(dim, position):
    freqs = torch.pow(10000, -torch.arange(dim // 2).to(torch.float64) / (dim // 2))
    angles = torch.outer(position.to(torch.float64), freqs)
    return torch.cat([angles.cos(), angles.sin()], dim=1).to(position.dtype)


class WanBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.time_embedding = nn.Sequential(nn.Linear(64, 48), nn.SiLU(), nn.Linear(48, 96))
        self.proj = nn.Linear(48, 48)

    def forward(self, x, timestep):
        t = self.time_embedding(sinusoidal_embedding(64, timestep))
        shift, scale = t[:, None].chunk(2, -1)
        return x + self.proj(x * (1 + scale) + shift)


class Pipeline(nn.Module):
    def __init__(self, torch_dtype=torch.bfloat16):
        super().__init__()
        self.torch_dtype = torch_dtype
        self.dit = WanBlock().to(torch_dtype)

    def forward(self, latents, timestep):
        timestep = timestep.unsqueeze(0).to(dtype=self.torch_dtype)
        return self.dit(latents, timestep)


def factory():
    return Pipeline().eval(), (torch.randn(1, 12, 48).bfloat16(), torch.tensor(998.3897))
