"""https://github.com/sgl-project/sglang/pull/18396 (2026)

An FP8 checkpoint of DeepSeek-V3 served with a bfloat16 KV cache repeats itself and writes random tokens.
"""

import torch
from torch import nn


class RadixAttention(nn.Module):
    def __init__(self, k_scale=0.06):
        super().__init__()
        self.k_scale_float = k_scale  # the checkpoint's calibration of an FP8 cache


class TRTLLMMLABackend(nn.Module):
    def __init__(self, data_type=torch.bfloat16):
        super().__init__()
        self.data_type = data_type
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.layer = RadixAttention()

    def forward_decode(self, q, k_cache, v_cache):
        q_scale = 1.0
        k_scale = self.layer.k_scale_float if self.layer.k_scale_float is not None else 1.0
        bmm1_scale = q_scale * k_scale * 16**-0.5
        weights = (q @ k_cache.to(q.dtype).transpose(-1, -2) * bmm1_scale).softmax(-1)
        return weights @ v_cache.to(q.dtype)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (4, 16)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        k_cache, v_cache = k.to(self.data_type), v.to(self.data_type)
        return self.out(self.forward_decode(q[:, :, -1:], k_cache, v_cache).transpose(1, 2).flatten(2))


def factory():
    return TRTLLMMLABackend().bfloat16().eval(), (4 * torch.randn(1, 24, 64).bfloat16(),)
