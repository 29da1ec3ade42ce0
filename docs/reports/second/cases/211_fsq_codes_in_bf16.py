"""https://github.com/lucidrains/vector-quantize-pytorch/issues/114 (2024)

FSQ trained with bfloat16 never uses half of its codebook; with float32 it uses all of it.
"""

import torch
from torch import nn


class FSQ(nn.Module):
    def __init__(self, levels=(8, 5, 5, 5)):
        super().__init__()
        self.register_buffer("_levels", torch.tensor(levels, dtype=torch.int32), persistent=False)
        basis = torch.cumprod(torch.tensor([1, *levels[:-1]]), dim=0, dtype=torch.int32)
        self.register_buffer("_basis", basis, persistent=False)

    def quantize(self, z):
        half_l = (self._levels - 1) * (1 + 1e-3) / 2
        offset = torch.where(self._levels % 2 == 0, 0.5, 0.0).to(z.dtype)
        bounded = (z + (offset / half_l).atanh().to(z.dtype)).tanh() * half_l.to(z.dtype) - offset
        return bounded.round() / (self._levels // 2)

    def codes_to_indices(self, zhat):
        half_width = self._levels // 2
        zhat = zhat * half_width + half_width
        return (zhat * self._basis).sum(dim=-1).to(torch.int32)

    def forward(self, z):
        return self.codes_to_indices(self.quantize(z))


class Tokenizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.fsq = FSQ()
        self.codebook = nn.Embedding(1024, 16)

    def forward(self, z):
        indices = self.fsq(z)
        return self.codebook(indices.long())


def factory():
    return Tokenizer().bfloat16().eval(), (2 * torch.randn(2, 50, 4).bfloat16(),)
