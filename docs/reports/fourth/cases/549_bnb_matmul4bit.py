"""https://github.com/bitsandbytes-foundation/bitsandbytes/pull/1285 (2024)

4-bit linear whose weights were quantized from bfloat16, run with another
compute_dtype: dtype mismatch in the matmul.
"""
import torch
from torch import nn
import torch.nn.functional as F


class QuantState:
    def __init__(self, absmax, code, shape, dtype, blocksize):
        self.absmax, self.code, self.shape = absmax, code, shape
        self.dtype, self.blocksize = dtype, blocksize


def quantize_4bit(W, blocksize=16):
    code = torch.linspace(-1, 1, 16)
    blocks = W.float().reshape(-1, blocksize)
    absmax = blocks.abs().amax(1, keepdim=True)
    idx = ((blocks / absmax).unsqueeze(-1) - code).abs().argmin(-1).to(torch.uint8)
    return idx, QuantState(absmax, code, W.shape, W.dtype, blocksize)


def dequantize_4bit(B, state):
    return (state.code[B.long()] * state.absmax).reshape(state.shape).to(state.dtype)


class Linear4bit(nn.Module):
    def __init__(self, weight, bias, compute_dtype):
        super().__init__()
        packed, self.quant_state = quantize_4bit(weight)
        self.register_buffer("weight", packed)
        self.bias = nn.Parameter(bias)
        self.compute_dtype = compute_dtype

    def forward(self, x):
        inp_dtype = x.dtype
        x = x.to(self.compute_dtype)
        bias = self.bias.to(self.compute_dtype)
        out = F.linear(x, dequantize_4bit(self.weight, self.quant_state), bias)
        return out.to(inp_dtype)


def factory():
    torch.manual_seed(0)
    W = (torch.randn(24, 32) / 6).to(torch.bfloat16)
    layer = Linear4bit(W, torch.zeros(24, dtype=torch.bfloat16), compute_dtype=torch.float32)
    return layer, (torch.randn(5, 32, dtype=torch.bfloat16),)
