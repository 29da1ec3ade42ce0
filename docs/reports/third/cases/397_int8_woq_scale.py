"""https://github.com/pytorch/ao/pull/534 (2024)
Under bf16 autocast the int8 weight-only linear hands on float32: every layer after it gets
a float32 activation that is converted again.
"""
import torch
from torch import nn


class Int8WeightOnlyQuantizedLinear(nn.Module):
    def __init__(self, linear):
        super().__init__()
        w = linear.weight.detach()
        scales = w.abs().amax(1) / 127
        self.register_buffer("w_int8", (w / scales[:, None]).round().to(torch.int8))
        self.register_buffer("scales", scales)

    def forward(self, x):
        y = torch.mm(x.reshape(-1, x.shape[-1]), self.w_int8.t().to(x.dtype))
        y = y * self.scales
        return y.reshape(*x.shape[:-1], -1)


class Model(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.w1 = Int8WeightOnlyQuantizedLinear(nn.Linear(dim, dim, bias=False))
        self.w2 = Int8WeightOnlyQuantizedLinear(nn.Linear(dim, dim, bias=False))

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.w2(torch.nn.functional.silu(self.w1(x)))


def factory():
    torch.manual_seed(0)
    return Model(), (torch.randn(4, 6, 32),)
