"""https://github.com/deepspeedai/DeepSpeed/issues/7775 (2026)

ZeRO-3 with zero_quantized_weights=true and bf16: BERT stops in its first linear with bfloat16 and half.
"""

import torch
import torch.nn.functional as F
from torch import nn


class CUDAQuantizer:
    """Blocks of int8 with a scale; the kernel knows float16 only."""

    def quantize(self, weight):
        scale = weight.float().abs().amax(1, keepdim=True) / 127
        return (weight.float() / scale).round().to(torch.int8), scale

    def dequantize(self, quantized, scale):
        return (quantized.float() * scale).half()


class AllGatherCoalescedHandle:
    def __init__(self, quantized, scale, quantizer):
        self.quantized, self.scale, self.quantizer = quantized, scale, quantizer

    def wait(self):
        return self.quantizer.dequantize(self.quantized, self.scale)


class Zero3Linear(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.partition = nn.Parameter(torch.randn(n_out, n_in) / n_in**0.5)
        self.bias = nn.Parameter(torch.zeros(n_out))
        self.quantizer = CUDAQuantizer()

    def forward(self, x):
        handle = AllGatherCoalescedHandle(*self.quantizer.quantize(self.partition), self.quantizer)
        return F.linear(x, handle.wait(), self.bias)


class BertLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(60, 48)
        self.dense, self.output = Zero3Linear(48, 96), Zero3Linear(96, 48)

    def forward(self, tokens):
        hidden = self.embed(tokens)
        return hidden + self.output(F.gelu(self.dense(hidden)))


def factory():
    return BertLayer().bfloat16(), (torch.randint(0, 60, (2, 8)),)
