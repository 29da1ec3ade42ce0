# bitsandbytes-foundation/bitsandbytes#1623: compute_dtype=bfloat16 is given and the 4-bit matmul runs in float32
# answer: forward() sets the type from the float32 input because compute_type_is_set stays False; respect the argument
import torch
import torch.nn.functional as F
from torch import nn


class Linear4bit(nn.Module):
    def __init__(self, n_in, n_out, compute_dtype=None):
        super().__init__()
        self.compute_dtype = compute_dtype
        self.compute_type_is_set = False
        self.register_buffer("codes", torch.randint(0, 16, (n_out, n_in), dtype=torch.uint8))
        self.register_buffer("absmax", torch.rand(n_out, 1) / 8)

    def forward(self, x):
        compute_dtype = self.compute_dtype if self.compute_type_is_set else x.dtype
        weight = (self.codes.to(compute_dtype) - 8) / 8 * self.absmax.to(compute_dtype)
        return F.linear(x.to(compute_dtype), weight).to(x.dtype)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = Linear4bit(128, 256, compute_dtype=torch.bfloat16)
        self.down = Linear4bit(256, 128, compute_dtype=torch.bfloat16)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


def factory():
    return Mlp().eval(), (torch.randn(1, 32, 128),)
