"""https://github.com/Nerogar/OneTrainer/issues/996 (2025)

Full fine-tune with bf16 weights, AdamW and stochastic rounding. The weight decay setting makes no difference:
embedding rows that get no gradient have exactly the value they started with after the whole run.
"""
import torch
from torch import nn


def copy_stochastic_(target, source):
    bits = source.view(torch.int32) + torch.randint(0, 1 << 16, source.shape, dtype=torch.int32)
    target.copy_(bits.bitwise_and_(-65536).view(torch.float32))


class AdamW(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step_adamw_parameter(self, p, group):
        state = self.state[p]
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(p, dtype=torch.float32),
                         exp_avg_sq=torch.zeros_like(p, dtype=torch.float32))
        beta1, beta2 = group["betas"]
        grad = p.grad.float()
        state["step"] += 1
        p.mul_(1 - group["lr"] * group["weight_decay"])
        state["exp_avg"].lerp_(grad, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        denom = (state["exp_avg_sq"] / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
        p_fp32 = p.float()
        p_fp32.addcdiv_(state["exp_avg"], denom, value=-group["lr"] / (1 - beta1 ** state["step"]))
        copy_stochastic_(p, p_fp32)

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                self.step_adamw_parameter(p, group)


class FineTune(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(32, 16, dtype=torch.bfloat16)
        self.optimizer = AdamW(self.embedding.parameters())

    def forward(self, tokens, target):
        for _ in range(200):
            self.optimizer.zero_grad()
            nn.functional.mse_loss(self.embedding(tokens).float(), target).backward()
            self.optimizer.step()
        return self.embedding.weight


def factory():
    torch.manual_seed(0)
    return FineTune(), (torch.arange(8), torch.zeros(8, 16))
