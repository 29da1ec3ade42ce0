"""https://github.com/openvpi/DiffSinger/pull/301 (2026)

Muon with float16 orthogonalization is unstable: when the gradients get large the matrix parameters stop
moving, although the gradient itself is finite. With bfloat16 it trains.
"""
import torch
from torch import nn


def zeropower_via_newtonschulz5(G, steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    X = G.to(torch.float16)
    X = X / (X.norm() + 1e-7)
    for _ in range(steps):
        A = X @ X.mT
        X = a * X + (b * A + c * A @ A) @ X
    return X.to(G.dtype)


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(zeropower_via_newtonschulz5(p.grad), alpha=-group["lr"])


class TrainStep(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.proj = nn.Linear(dim, dim, bias=False)
        self.optimizer = Muon(self.proj.parameters())

    def forward(self, x, y):
        self.optimizer.zero_grad()
        loss = (self.proj(x) - y).pow(2).sum()
        loss.backward()
        self.optimizer.step()
        return loss, self.proj.weight


def factory():
    torch.manual_seed(0)
    return TrainStep(), (torch.randn(64, 64) * 10, torch.randn(64, 64) * 10)
