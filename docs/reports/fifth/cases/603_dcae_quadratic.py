"""https://github.com/huggingface/diffusers/pull/10595 (2025)

DC-AE in bfloat16: decoding small tiles raises "expected scalar type Float but found BFloat16",
although the model and the latents have the same dtype. Large images decode.
"""
import torch
from torch import nn
import torch.nn.functional as F


class MultiscaleLinearAttention(nn.Module):
    def __init__(self, channels=32, head_dim=8, eps=1e-15):
        super().__init__()
        self.head_dim, self.eps = head_dim, eps
        self.to_qkv = nn.Conv2d(channels, 3 * channels, 1, bias=False)
        self.to_out = nn.Conv2d(channels, channels, 1)

    def apply_linear_attention(self, query, key, value):
        value = F.pad(value, (0, 0, 0, 1), mode="constant", value=1)
        out = ((value @ key.transpose(-1, -2)) @ query).to(dtype=torch.float32)
        return out[:, :, :-1] / (out[:, :, -1:] + self.eps)

    def apply_quadratic_attention(self, query, key, value):
        scores = key.transpose(-1, -2) @ query
        scores = scores.to(dtype=torch.float32)
        scores = scores / (scores.sum(dim=2, keepdim=True) + self.eps)
        return value @ scores

    def forward(self, hidden_states):
        batch, _, height, width = hidden_states.shape
        qkv = self.to_qkv(hidden_states).view(batch, -1, 3 * self.head_dim, height * width)
        query, key, value = qkv.chunk(3, dim=2)
        query, key = F.relu(query), F.relu(key)
        if height * width > self.head_dim:
            out = self.apply_linear_attention(query, key, value)
        else:
            out = self.apply_quadratic_attention(query, key, value)
        out = out.to(hidden_states.dtype).reshape(batch, -1, height, width)
        return hidden_states + self.to_out(out)


def factory():
    torch.manual_seed(0)
    model = MultiscaleLinearAttention().to(torch.bfloat16).eval()
    return model, (torch.randn(2, 32, 2, 3, dtype=torch.bfloat16),)
