"""https://github.com/NVIDIA/Model-Optimizer/pull/1824 (2026)
mtq.quantize crashes in calibration on a model whose weights are stored in FP8
(DeepSeek-V3): max_all is not implemented for Float8_e4m3fn.
"""
import torch
from torch import nn


def reduce_amax(input, axis=None, keepdims=True):
    if axis is None:
        max_val = torch.max(input)
        min_val = torch.min(input)
        return torch.maximum(torch.abs(max_val), torch.abs(min_val))
    max_val = torch.amax(input, dim=axis, keepdim=keepdims)
    min_val = torch.amin(input, dim=axis, keepdim=keepdims)
    return torch.maximum(torch.abs(max_val), torch.abs(min_val))


class TensorQuantizer(nn.Module):
    def __init__(self, maxbound=6.0):
        super().__init__()
        self.maxbound = maxbound

    def forward(self, weight):
        amax = reduce_amax(weight)
        return amax / self.maxbound


class QuantLinear(nn.Module):
    def __init__(self):
        super().__init__()
        weight = torch.randn(16, 32).to(torch.float8_e4m3fn)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.weight_quantizer = TensorQuantizer()

    def forward(self, x):
        scale = self.weight_quantizer(self.weight)
        w = self.weight.to(x.dtype) / scale
        return (x @ w.t()) * scale


def factory():
    torch.manual_seed(0)
    return QuantLinear(), (torch.randn(4, 32),)
