# casper-hansen/AutoAWQ#740: a Llama that is bfloat16 by origin fails on the Triton path of its AWQ layers
# answer: the weight is dequantised to float16 whatever the input; cast it to x.dtype before the product
import torch
from torch import nn


def dequantise(qweight, scales, zeros):
    return (qweight.to(torch.float16) - zeros.to(torch.float16)) * scales.to(torch.float16)


class AwqLinear(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.register_buffer("qweight", torch.randint(0, 16, (n_in, n_out), dtype=torch.uint8))
        self.register_buffer("scales", torch.rand(1, n_out) / 60)
        self.register_buffer("zeros", torch.full((1, n_out), 8, dtype=torch.uint8))
        self.bias = nn.Parameter(torch.zeros(n_out))

    def forward(self, x):
        weight = dequantise(self.qweight, self.scales, self.zeros)
        return torch.matmul(x, weight) + self.bias


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = AwqLinear(64, 96), AwqLinear(96, 64)

    def forward(self, x):
        return x + self.down(torch.nn.functional.silu(self.up(x)))


def factory():
    return Mlp().bfloat16().eval(), (torch.randn(1, 5, 64).bfloat16(),)
