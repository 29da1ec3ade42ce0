"""https://github.com/rwth-i6/returnn/pull/1595 (2024; issue 1590)

RETURNN with torch_amp and gradient_clip_global_norm: the model hardly learns, as if every step were
clipped whatever the norm limit is; without AMP the same config trains.
"""
import torch
from torch import nn


class Engine(nn.Module):
    def __init__(self, gradient_clip_global_norm=5.0, steps=20):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 8))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.grad_scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 16)
        self.clip, self.steps = gradient_clip_global_norm, steps

    def step(self, features, targets):
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            logits = self.model(features)
        loss = nn.functional.cross_entropy(logits.float(), targets)
        self.grad_scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.grad_scaler.step(self.optimizer)
        self.grad_scaler.update()
        return loss.detach()

    def forward(self, features, targets):
        return torch.stack([self.step(features, targets) for _ in range(self.steps)])


def factory():
    torch.manual_seed(0)
    targets = torch.randint(0, 8, (64,))
    features = torch.randn(8, 20)[targets] + 0.3 * torch.randn(64, 20)
    return Engine().train(), (features, targets)
