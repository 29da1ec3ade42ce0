"""https://github.com/X-GenGroup/Flow-Factory/pull/186 (2026)

Full fine-tune with fp32 master weights under bf16 autocast: the loss is flat and
the KL stays at about zero, although the parameters do change at every step.
"""
import torch
from torch import nn


class GRPOTrainer(nn.Module):
    def __init__(self, width=16, inner_steps=8, lr=0.05):
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(width, 32), nn.SiLU(), nn.Linear(32, width))
        self.inner_steps = inner_steps
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=lr)

    def autocast(self):
        return torch.autocast("cpu", dtype=torch.bfloat16)

    def optimize(self, latents, velocity):
        losses = []
        with self.autocast():
            for _ in range(self.inner_steps):
                loss = (self.policy(latents).float() - velocity).square().mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                losses.append(loss.detach())
        return torch.stack(losses)

    def forward(self, latents, velocity):
        return self.optimize(latents, velocity)


def factory():
    torch.manual_seed(0)
    x = torch.randn(64, 16)
    return GRPOTrainer(), (x, torch.tanh(x.roll(1, 1)))
