"""https://github.com/mit-han-lab/efficientvit/issues/110 (2024)
After the last code update FP16 gives NaN from stage 4 on; BF16 does not.
"""
import torch
import torch.nn.functional as F
from torch import nn


class LiteMLA(nn.Module):
    def __init__(self, in_channels=16, dim=8, eps=1e-15):
        super().__init__()
        self.dim, self.eps = dim, eps
        self.qkv = nn.Conv2d(in_channels, 3 * in_channels, 1, bias=False)
        self.proj = nn.Conv2d(in_channels, in_channels, 1, bias=False)

    def relu_linear_att(self, qkv):
        B, _, H, W = qkv.shape
        qkv = qkv.reshape(B, -1, 3 * self.dim, H * W)
        q, k, v = qkv[:, :, :self.dim], qkv[:, :, self.dim:2 * self.dim], qkv[:, :, 2 * self.dim:]
        q, k = F.relu(q), F.relu(k)
        v = F.pad(v, (0, 0, 0, 1), mode="constant", value=1)
        vk = torch.matmul(v, k.transpose(-1, -2))
        out = torch.matmul(vk, q)
        out = out[:, :, :-1] / (out[:, :, -1:] + self.eps)
        return out.reshape(B, -1, H, W)

    def forward(self, x):
        out = self.relu_linear_att(self.qkv(x))
        return self.proj(out.to(x.dtype))


def factory():
    torch.manual_seed(0)
    model = LiteMLA().half().eval()
    return model, (10 * torch.randn(1, 16, 32, 32).half(),)
