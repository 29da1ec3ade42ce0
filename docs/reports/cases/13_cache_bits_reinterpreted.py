# vllm-project/vllm#54338: --kv-cache-dtype float16 on a bfloat16 model: fluent nonsense, no error, nothing non-finite
# answer: the cache stores the bits of one 16-bit format and reads them as the other; convert, or refuse the dtype
import torch
import torch.nn.functional as F
from torch import nn


def reshape_and_cache(x, cache, slots):
    """Copy 16-bit words, as the kernel does for every cache dtype that is not float8."""
    cache.view(torch.int16)[:, slots] = x.view(torch.int16)


class Attention(nn.Module):
    def __init__(self, kv_cache_dtype=torch.float16):
        super().__init__()
        self.qkv = nn.Linear(64, 192)
        self.kv_cache_dtype = kv_cache_dtype

    def forward(self, x, slots):
        q, k, v = (t.unflatten(-1, (4, 16)) for t in self.qkv(x).chunk(3, -1))
        k_cache, v_cache = (torch.zeros(1, 24, 4, 16, dtype=self.kv_cache_dtype) for _ in range(2))
        reshape_and_cache(k.contiguous(), k_cache, slots)
        reshape_and_cache(v.contiguous(), v_cache, slots)
        k, v = (c[:, slots].transpose(1, 2).to(q.dtype) for c in (k_cache, v_cache))
        return F.scaled_dot_product_attention(q.transpose(1, 2), k, v)


def factory():
    return Attention().bfloat16().eval(), (torch.randn(1, 9, 64).bfloat16(), torch.arange(9))
