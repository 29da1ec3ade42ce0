"""https://github.com/pytorch/ao/pull/4714 (2026)
Float8Tensor.from_hp gives NaN qdata and a NaN dequantized output as soon as the input
has a row of zeros (a padded token); the other rows are right.
"""
import torch
from torch import nn


def _choose_scale_float8(tensor, float8_dtype=torch.float8_e4m3fn):
    quant_max = torch.finfo(float8_dtype).max
    max_abs = tensor.abs().amax(dim=-1, keepdim=True)
    scale = max_abs.to(torch.float32) / quant_max
    return scale


def _quantize_affine_float8(tensor, scale, float8_dtype=torch.float8_e4m3fn):
    max_value = torch.finfo(float8_dtype).max
    tensor_scaled = tensor.to(torch.float32) / scale
    return tensor_scaled.clamp(-max_value, max_value).to(float8_dtype)


class Float8Linear(nn.Module):
    def __init__(self, weight):
        super().__init__()
        scale = _choose_scale_float8(weight)
        self.register_buffer("qdata", _quantize_affine_float8(weight, scale))
        self.register_buffer("scale", scale)

    def forward(self, x):
        x_scale = _choose_scale_float8(x)
        xq = _quantize_affine_float8(x, x_scale)
        out = xq.to(torch.float32) @ self.qdata.to(torch.float32).t()
        return (out * x_scale * self.scale.t()).to(x.dtype)


def factory():
    torch.manual_seed(0)
    linear = Float8Linear(torch.randn(16, 32).bfloat16())
    x = torch.randn(6, 32).bfloat16()
    x[4:] = 0
    return linear, (x,)
