"""https://github.com/lucidrains/ema-pytorch/issues/36 (2024)

Training with DeepSpeed and BF16 enabled, ema.update() stops with
RuntimeError: expected dtype float for `end` but got dtype c10::BFloat16
"""
import copy

import torch
from torch import nn


class EMA(nn.Module):
    def __init__(self, model, beta=0.99, coerce_dtype=False):
        super().__init__()
        self.beta = beta
        self.coerce_dtype = coerce_dtype
        self.online_model = [model]
        self.ema_model = copy.deepcopy(model).requires_grad_(False)

    def inplace_lerp(self, tgt, src, weight):
        if self.coerce_dtype:
            src = src.to(tgt.dtype)
        tgt.lerp_(src, weight)

    @torch.no_grad()
    def update(self):
        for tgt, src in zip(self.ema_model.parameters(), self.online_model[0].parameters()):
            self.inplace_lerp(tgt, src.data, 1.0 - self.beta)


class Trainer(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.ema = EMA(self.model, beta=0.99)
        self.model.to(torch.bfloat16)

    def forward(self, x):
        loss = (self.model(x).float() - x.float()).pow(2).mean()
        loss.backward()
        with torch.no_grad():
            for p in self.model.parameters():
                p -= 0.1 * p.grad
        self.ema.update()
        return loss


def factory():
    torch.manual_seed(0)
    return Trainer(), (torch.randn(8, 16, dtype=torch.bfloat16),)
