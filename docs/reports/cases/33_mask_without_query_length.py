# microsoft/VibeVoice#312: SDPA: "The expanded size of the tensor (228) must match the existing size (223)", MPS and CPU
# answer: not a dtype fault: get_mask_sizes() of the mock cache leaves out query_length, so the mask is too short
import torch
import torch.nn.functional as F
from torch import nn


class MockCacheLayer:
    def __init__(self, keys, values):
        self.keys, self.values = keys, values

    def get_seq_length(self):
        return self.keys.shape[2]

    def get_mask_sizes(self, cache_position):
        return self.get_seq_length(), 0

    def update(self, k, v):
        return torch.cat([self.keys, k], dim=2), torch.cat([self.values, v], dim=2)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(56, 168)
        self.register_buffer("past", torch.randn(2, 1, 4, 23, 14))

    def forward(self, x):
        cache = MockCacheLayer(*self.past)
        cache_position = torch.arange(x.shape[1]) + cache.get_seq_length()
        kv_length, offset = cache.get_mask_sizes(cache_position)
        mask = (torch.arange(kv_length) + offset)[None, :] <= cache_position[:, None]
        q, k, v = (t.unflatten(-1, (4, 14)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        k, v = cache.update(k, v)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask[None, None])


def factory():
    return Layer().bfloat16().eval(), (torch.randn(1, 5, 56).bfloat16(),)
