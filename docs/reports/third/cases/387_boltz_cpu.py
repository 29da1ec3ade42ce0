"""https://github.com/jwohlwend/boltz/pull/670 (2026)
On the CPU the predicted structure has too long bonds and colliding atoms and a lower
confidence than on the GPU, for the same input and seed.
"""
import torch
from torch import nn


class AtomDiffusion(nn.Module):
    def __init__(self, steps=4):
        super().__init__()
        self.steps = steps
        self.score = nn.Linear(3, 3, bias=False)
        nn.init.eye_(self.score.weight)
        self.cond = nn.Linear(16, 3)

    def sample(self, s_trunk, coords):
        for _ in range(self.steps):
            denoised = self.score(coords) + 0.1 * self.cond(s_trunk)
            coords = coords + 0.5 * (denoised - coords)
        return coords


class Boltz2(nn.Module):
    def __init__(self):
        super().__init__()
        self.pairformer = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16))
        self.structure_module = AtomDiffusion()

    def forward(self, feats, coords):
        s = self.pairformer(feats)
        with torch.autocast("cuda", enabled=False):
            struct_out = self.structure_module.sample(s_trunk=s.float(), coords=coords.float())
        return struct_out


class Predict(nn.Module):
    def __init__(self, model, precision="bf16-mixed"):
        super().__init__()
        self.model, self.precision = model, precision

    def forward(self, feats, coords):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.precision == "bf16-mixed"):
            return self.model(feats, coords)


def factory():
    torch.manual_seed(0)
    coords = torch.cumsum(torch.tensor([0.9, 0.8, 0.85]).expand(120, 3), 0)
    return Predict(Boltz2()), (torch.randn(120, 8), coords)
