"""https://github.com/NVIDIA/Model-Optimizer/pull/2322 (2026)
After a resume of the DFlash draft training the loss keeps falling, but from a point on
no RMSNorm weight changes any more.
"""
import torch
from torch import nn


class DFlashModule(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.norm = nn.RMSNorm(hidden)
        self.fc = nn.Linear(hidden, hidden)

    def forward(self, x):
        x = x.to(self.norm.weight.dtype)
        return self.fc(self.norm(x))


class HFDFlashModel(nn.Module):
    def __init__(self, dtype=torch.bfloat16):
        super().__init__()
        self.dflash_module = DFlashModule().to(dtype)

    def forward(self, x, target):
        params = list(self.dflash_module.parameters())
        optimizer = torch.optim.AdamW(params, lr=6e-4, weight_decay=0.0)
        for _ in range(30):
            loss = (self.dflash_module(x) - target).float().pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.detach(), self.dflash_module.norm.weight


def factory():
    torch.manual_seed(0)
    model = HFDFlashModel(dtype=torch.bfloat16)
    x = torch.randn(16, 32)
    return model, (x, 2 * x)
