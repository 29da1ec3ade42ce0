# pytorch/pytorch#133085: Llama with a fused RMSNorm answers nonsense in float16 and is right in float32
# answer: the square overflows float16 before the mean and the norm returns zeros; compute the variance in float32
import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + self.eps))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = RMSNorm(64)
        self.gate, self.down = nn.Linear(64, 96), nn.Linear(96, 64)

    def forward(self, x):
        h = self.norm(x)
        return self.down(torch.nn.functional.silu(self.gate(h)))


def factory():
    residual = torch.randn(1, 8, 64)
    residual[..., 5] = 420.0  # the massive activation that trained Llamas have
    return Layer().half().eval(), (residual.half(),)
