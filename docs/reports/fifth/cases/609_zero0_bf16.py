"""https://github.com/deepspeedai/DeepSpeed/pull/7839 (2026)

bf16 with ZeRO stage 0: the gradient norm goes up from step to step and the loss does not come down;
with stage 1, 2 or 3 and nothing else changed the run is normal.
"""
import torch
from torch import nn


class UnfusedOptimizer:
    def __init__(self, params, lr, dynamic_loss_scale):
        self.params = list(params)
        self.fp32_params = [p.detach().clone().float().requires_grad_() for p in self.params]
        self.optimizer = torch.optim.SGD(self.fp32_params, lr=lr, momentum=0.9)
        self.cur_scale = 2.0 ** 16 if dynamic_loss_scale else 1.0

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    def step(self):
        for p, fp32 in zip(self.params, self.fp32_params):
            fp32.grad = p.grad.float() / self.cur_scale
        self.optimizer.step()
        for p, fp32 in zip(self.params, self.fp32_params):
            p.data.copy_(fp32)


class Engine(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.module = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 4)).bfloat16()
        self.optimizer = UnfusedOptimizer(self.module.parameters(), 0.05, self.dynamic_loss_scale())

    def dynamic_loss_scale(self):
        return self.config.get("loss_scale", 0) == 0

    def forward(self, x, y):
        losses = []
        for _ in range(12):
            loss = (self.module(x.bfloat16()).float() - y).square().mean()
            losses.append(loss.detach())
            if self.config.get("fp16"):
                loss = loss * self.optimizer.cur_scale
            loss.backward()
            self.optimizer.step()
            if self.config["zero_stage"] > 0 or self.config.get("fp16"):
                self.optimizer.zero_grad()
        return torch.stack(losses)


def factory():
    torch.manual_seed(0)
    x = torch.randn(64, 16)
    return Engine({"bf16": True, "zero_stage": 0}), (x, torch.tanh(x[:, :4] + x[:, 4:8]))
