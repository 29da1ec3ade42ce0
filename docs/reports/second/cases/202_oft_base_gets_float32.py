"""https://github.com/huggingface/peft/pull/2575 (2025)

OFT on a bfloat16 base model: the forward of the base layer raises on mismatched dtypes.
"""

import torch
from torch import nn


class OFTRotation(nn.Module):
    def __init__(self, blocks, size):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(blocks, size, size) / 50)

    def forward(self, x):
        skew = self.weight - self.weight.transpose(1, 2)
        eye = torch.eye(skew.shape[-1], dtype=skew.dtype)
        rotation = torch.linalg.solve(eye + skew, eye - skew)
        x = x.unflatten(-1, skew.shape[:2])
        return torch.einsum("...bi,bij->...bj", x, rotation).flatten(-2)


class OFTLinear(nn.Module):
    def __init__(self, base_layer, blocks=6):
        super().__init__()
        self.base_layer = base_layer
        self.oft_R = OFTRotation(blocks, base_layer.in_features // blocks)  # float32 by autocast_adapter_dtype

    def forward(self, x):
        previous_dtype = x.dtype
        x = self._cast_input_dtype(x, self.oft_R.weight.dtype)
        x = self.oft_R(x)
        result = self.base_layer(x)
        return result.to(previous_dtype)

    def _cast_input_dtype(self, x, dtype):
        return x if x.dtype == dtype else x.to(dtype)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = OFTLinear(nn.Linear(48, 96).bfloat16())
        self.down = OFTLinear(nn.Linear(96, 48).bfloat16())

    def forward(self, x):
        return x + self.down(torch.nn.functional.silu(self.up(x)))


def factory():
    return Block().eval(), (torch.randn(2, 5, 48).bfloat16(),)
