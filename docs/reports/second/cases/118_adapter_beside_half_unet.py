"""https://github.com/Comfy-Org/ComfyUI/issues/3593 (2024)

IPAdapter on a GTX 1080 Ti: query.dtype: struct c10::Half key.dtype: float and value.dtype: float instead.
"""
import torch
from torch import nn


def attention_pytorch(q, k, v, heads):
    batch, _, inner = q.shape
    q, k, v = (t.view(batch, -1, heads, inner // heads).transpose(1, 2) for t in (q, k, v))
    out = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False)
    return out.transpose(1, 2).reshape(batch, -1, inner)


class IpAdapter(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.image_proj = nn.Linear(24, width)
        self.to_k_ip, self.to_v_ip = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, q, image_embeds, weight=0.8):
        cond = self.image_proj(image_embeds)
        ip_k, ip_v = self.to_k_ip(cond), self.to_v_ip(cond)
        out_ip = attention_pytorch(q, ip_k, ip_v, 4)
        return out_ip * weight


class PatchedBlock(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.half()  # the checkpoint of the UNet
        self.adapter = IpAdapter(width)

    def forward(self, x, context, image_embeds):
        q = self.to_q(x)
        out = attention_pytorch(q, self.to_k(context), self.to_v(context), 4)
        return x + out + self.adapter(q, image_embeds).to(x.dtype)


def factory():
    return PatchedBlock().eval(), (torch.randn(1, 16, 48).half(), torch.randn(1, 7, 48).half(), torch.randn(1, 4, 24))
