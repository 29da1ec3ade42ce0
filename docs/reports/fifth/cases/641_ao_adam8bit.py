"""https://github.com/pytorch/ao/pull/2286 (2025)

Fine-tuning with AdamW8bit in a script that sets the default dtype to bfloat16 stops in the
first optimizer step; the same script without that line trains.
"""
import torch
from torch import nn
from torch.nn import functional as F

QMAP_SIGNED = [(i - 127) / 128 for i in range(256)]
QMAP_UNSIGNED = [i / 255 for i in range(256)]


class OptimState8bit:
    def __init__(self, shape, signed, block_size=32):
        self.codes = torch.full(shape, 127 if signed else 0, dtype=torch.uint8)
        self.scale = torch.zeros(self.codes.numel() // block_size)
        self.qmap = torch.tensor(QMAP_SIGNED if signed else QMAP_UNSIGNED)

    def dequantize(self):
        out = self.qmap[self.codes.int()].view(self.scale.shape[0], -1) * self.scale.view(-1, 1)
        return out.view(self.codes.shape)

    def copy_(self, src):
        blocks = src.reshape(self.scale.shape[0], -1)
        self.scale.copy_(blocks.abs().amax(-1).clip(1e-12))
        codes = torch.searchsorted(self.qmap.to(src.dtype), blocks / self.scale.view(-1, 1).to(src.dtype)).clip(max=255)
        self.codes.copy_(codes.view(self.codes.shape))


def single_param_adam(p, exp_avg, exp_avg_sq, lr, beta1, beta2, step):
    grad_f32 = p.grad.float()
    exp_avg_f32 = exp_avg.dequantize().lerp(grad_f32, 1 - beta1)
    exp_avg_sq_f32 = exp_avg_sq.dequantize().lerp(grad_f32.square(), 1 - beta2)
    exp_avg.copy_(exp_avg_f32)
    exp_avg_sq.copy_(exp_avg_sq_f32)
    denom = (exp_avg_sq_f32 / (1 - beta2 ** step)).sqrt() + 1e-8
    p.data.copy_(p.data.float() - lr * exp_avg_f32 / (1 - beta1 ** step) / denom)


class Finetune(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.model = nn.Linear(dim, dim)
        self.state = [[OptimState8bit(p.shape, signed) for signed in (True, False)] for p in self.model.parameters()]

    def forward(self, x, y):
        for step in range(1, 4):
            loss = F.mse_loss(self.model(x).float(), y.float())
            self.model.zero_grad()
            loss.backward()
            for p, state in zip(self.model.parameters(), self.state):
                single_param_adam(p, *state, 1e-2, 0.9, 0.99, step)
        return loss.detach()


def factory():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    case = Finetune(), (torch.randn(16, 32), torch.randn(16, 32))
    torch.set_default_dtype(torch.float32)
    return case
