"""https://github.com/huggingface/transformers/issues/31293 (2024)

QLoRA fine-tuning of a 4-bit model works well; after merge_and_unload the same model is as bad as before the
fine-tuning.
"""
import torch
import torch.nn.functional as F
from torch import nn


def quantize_4bit(w, blocksize=64):
    blocks = w.reshape(-1, blocksize)
    absmax = blocks.abs().amax(dim=1, keepdim=True)
    return torch.round(blocks / absmax * 7).to(torch.int8), absmax


def dequantize_4bit(code, absmax, shape):
    return (code.to(absmax.dtype) / 7 * absmax).reshape(shape)


class Linear4bit(nn.Module):
    def __init__(self, in_features, out_features, r=4, lora_alpha=8):
        super().__init__()
        w = torch.randn(out_features, in_features) * 0.3
        self.shape = w.shape
        code, absmax = quantize_4bit(w)
        self.register_buffer("code", code)
        self.register_buffer("absmax", absmax)
        self.lora_A = nn.Parameter(torch.randn(r, in_features) * 0.01 + 0.03)
        self.lora_B = nn.Parameter(torch.randn(out_features, r) * 0.01 + 0.04)
        self.scaling = lora_alpha / r

    def merged_weight(self):
        w = dequantize_4bit(self.code, self.absmax, self.shape)
        w = w + (self.lora_B @ self.lora_A) * self.scaling
        code, absmax = quantize_4bit(w)
        return dequantize_4bit(code, absmax, self.shape)

    def forward(self, x):
        return F.linear(x, self.merged_weight())


def factory():
    torch.manual_seed(0)
    return Linear4bit(128, 64).eval(), (torch.randn(8, 128) * 0.2 + 1.0,)
