# sgl-project/sglang#11494: an AWQ mixture of experts in bfloat16: "expected scalar type Half but found BFloat16"
# answer: the input is halved by hand (x.half()) while the scales keep the model's dtype; leave x as it is
import torch
from torch import nn


class Experts(nn.Module):
    def __init__(self, experts=3, width=48):
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.register_buffer("codes", torch.randint(-8, 8, (experts, width, width), dtype=torch.int8))
        self.b_scales = nn.Parameter(torch.rand(experts, 1, width) / 30)

    def gemm(self, a, expert):
        return a @ (self.codes[expert] * self.b_scales[expert])

    def forward(self, x):
        original = x.dtype
        weights = self.router(x).softmax(-1)
        x = x.half()
        mixed = sum(self.gemm(x, i) * weights[..., i : i + 1] for i in range(len(self.codes)))
        return mixed.to(original)


def factory():
    return Experts().bfloat16().eval(), (torch.randn(2, 4, 48).bfloat16(),)
