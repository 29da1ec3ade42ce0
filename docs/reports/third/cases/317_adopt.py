"""https://github.com/iShohei220/adopt/issues/10 (2024)

Training an auto-encoder with the ADOPT optimizer: the loss is NaN from the first epoch on, epoch after
epoch, without an exception.
"""
import torch
from torch import nn


class ADOPT(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.9999), eps=1e-6):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["exp_avg"] = torch.zeros_like(p)
                    state["exp_avg_sq"] = p.grad * p.grad
                    continue
                denom = torch.clamp(state["exp_avg_sq"].sqrt(), min=group["eps"])
                normed_grad = p.grad / denom
                state["exp_avg"].lerp_(normed_grad, 1 - beta1)
                p.add_(state["exp_avg"], alpha=-group["lr"])
                state["exp_avg_sq"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                state["step"] += 1


class AutoEncoder(nn.Module):
    def __init__(self, vocab=64, dim=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.body = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, dim))
        self.optimizer = ADOPT(self.parameters())

    def forward(self, batches):
        for ids in batches:
            self.optimizer.zero_grad()
            x = self.embed(ids)
            loss = (self.body(x) - x).pow(2).mean()
            loss.backward()
            self.optimizer.step()
        return loss


def factory():
    torch.manual_seed(0)
    return AutoEncoder(), (torch.randint(0, 64, (40, 16)),)
