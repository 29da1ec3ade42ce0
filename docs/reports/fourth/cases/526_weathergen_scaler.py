"""https://github.com/ecmwf/WeatherGenerator/pull/2549 (2026)

Training in bf16 mixed precision. The Nsight profile shows a considerable share of every step in the scaling part of
the step (unscale, inf checks, update). Is it needed, and would accuracy suffer without it?
"""
import torch
from torch import nn


class Trainer(nn.Module):
    def __init__(self, dim=48, mixed_precision_dtype=torch.bfloat16):
        super().__init__()
        self.mixed_precision_dtype = mixed_precision_dtype
        self.model = nn.Sequential(nn.Linear(dim, 96), nn.GELU(), nn.Linear(96, dim))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, betas=(0.9, 0.95))
        self.grad_scaler = torch.amp.GradScaler("cpu")

    def loss_calculator(self, preds, targets):
        return nn.functional.mse_loss(preds.float(), targets)

    def train_step(self, source, target):
        with torch.autocast("cpu", dtype=self.mixed_precision_dtype):
            preds = self.model(source)
        loss = self.loss_calculator(preds, target)
        self.optimizer.zero_grad()
        self.grad_scaler.scale(loss).backward()
        self.grad_scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=1.0)
        self.grad_scaler.step(self.optimizer)
        self.grad_scaler.update()
        return loss.detach()

    def forward(self, source, target):
        return torch.stack([self.train_step(source, target) for _ in range(4)])


def factory():
    torch.manual_seed(0)
    source = torch.randn(32, 48)
    return Trainer(), (source, 0.5 * source + 0.1 * torch.randn(32, 48))
