# Tencent-Hunyuan/HunyuanDiT#247: trained in bfloat16, the attention calls .half() by hand: unstable, then NaN
# answer: replace the hard-coded .half() by .to(x.dtype); bfloat16 values above 65504 do not fit into float16
import torch
import torch.nn.functional as F
from torch import nn


class CrossAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.kv_proj, self.out_proj = nn.Linear(64, 64), nn.Linear(48, 128), nn.Linear(64, 64)
        self.q_norm, self.k_norm = nn.LayerNorm(16), nn.LayerNorm(16)
        with torch.no_grad():
            self.kv_proj.weight[64:] *= 9e4  # large values in v, which bfloat16 trains with

    def forward(self, x, y):
        q = self.q_proj(x).unflatten(-1, (4, 16)).transpose(1, 2)
        k, v = (t.unflatten(-1, (4, 16)).transpose(1, 2) for t in self.kv_proj(y).chunk(2, -1))
        q, k = self.q_norm(q).half(), self.k_norm(k).half()
        out = F.scaled_dot_product_attention(q, k, v.half())
        return self.out_proj(out.transpose(1, 2).flatten(2).to(x.dtype))


def factory():
    return CrossAttention().bfloat16().eval(), (torch.randn(1, 6, 64).bfloat16(), torch.randn(1, 9, 48).bfloat16())
