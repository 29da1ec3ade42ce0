"""https://github.com/pytorch/torchtitan/pull/4135 (2026)
With training.dtype bfloat16 two runs with the same gradients but another pipeline split
report another grad_norm and clip by another factor; with float32 they agree.
"""
import torch
from torch import nn


def clip_grad_norm_(stages, max_norm):
    norms = []
    for params in stages:
        grads = [p.grad for p in params if p.grad is not None]
        norms.append(torch.nn.utils.get_total_norm(grads))
    total_norm = torch.stack(norms).pow(2).sum().sqrt()
    for params in stages:
        torch.nn.utils.clip_grads_with_norm_(params, max_norm, total_norm)
    return total_norm


class TrainStep(nn.Module):
    def __init__(self, layers=12, dim=24, split=5):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(layers))
        self.split = split

    def forward(self, x, target):
        self.zero_grad(set_to_none=True)
        h = x
        for layer in self.layers:
            h = h + torch.tanh(layer(h))
        loss = (h - target).float().pow(2).mean()
        loss.backward()
        stages = [list(self.layers[:self.split].parameters()), list(self.layers[self.split:].parameters())]
        return clip_grad_norm_(stages, max_norm=1.0)


def factory():
    torch.manual_seed(0)
    model = TrainStep().to(torch.bfloat16)
    return model, (torch.randn(32, 24).bfloat16(), torch.randn(32, 24).bfloat16())
