# intel/auto-round#207: quantising Qwen2 57B with float16 scales: the scale is 0 for some groups and the loss is NaN
# answer: a group of tiny weights has a scale below float16's range; compute the scale in float32 and clamp it
import torch
from torch import nn


class FakeQuantLinear(nn.Module):
    def __init__(self, n_in=64, n_out=32, bits=4):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_out, n_in) / n_in**0.5)
        self.max_code = 2 ** (bits - 1) - 1
        with torch.no_grad():
            self.weight[5] *= 3e-7  # an expert's row that training has left almost unused

    def forward(self, x):
        scale = self.weight.abs().amax(-1, keepdim=True) / self.max_code
        codes = (self.weight / scale).round().clamp(-self.max_code, self.max_code)
        return x @ (codes * scale).T


def factory():
    return FakeQuantLinear().half().eval(), (torch.randn(2, 6, 64).half(),)
