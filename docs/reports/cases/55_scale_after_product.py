# ultralytics/ultralytics#24990: under AMP some batches turn the attention of a detector to NaN
# answer: the raw product of query and key passes 65504 before it is scaled; scale the query first: (q * scale) @ k
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=64, heads=2):
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.scale = self.head_dim**-0.5
        self.qkv = nn.Conv2d(dim, 3 * dim, 1)
        self.proj = nn.Conv2d(dim, dim, 1)
        with torch.no_grad():
            self.qkv.weight[: 2 * dim] *= 130  # batches with large activations

    def forward(self, x):
        B, C, H, W = x.shape
        q, k, v = self.qkv(x).view(B, self.heads, 3 * self.head_dim, H * W).chunk(3, dim=2)
        attn = (q.transpose(-2, -1) @ k) * self.scale
        attn = attn.softmax(dim=-1)
        return self.proj((v @ attn.transpose(-2, -1)).reshape(B, C, H, W))


def factory():
    return Attention().half().eval(), (torch.randn(1, 64, 6, 6).half(),)
