# pytorch/pytorch#137774: torch.arange in bfloat16 repeats 256 and 260: positions collide and a mask shows the future
# answer: expected rounding, above 256 not every integer exists in bfloat16; build positions in an integer dtype
import torch
from torch import nn


class CausalAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        positions = torch.arange(x.shape[1], dtype=x.dtype)
        visible = positions[:, None] >= positions[None, :]
        recent = positions[:, None] - positions[None, :] < 8
        scores = (q @ k.transpose(1, 2)).float() * 32**-0.5
        weights = scores.masked_fill(~(visible & recent), float("-inf")).softmax(-1)
        return weights.to(v.dtype) @ v


def factory():
    return CausalAttention().bfloat16().eval(), (torch.randn(1, 600, 32).bfloat16(),)
