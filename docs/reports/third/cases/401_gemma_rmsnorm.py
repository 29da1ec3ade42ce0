"""https://github.com/google/gemma_pytorch/pull/67 (2024)
The hidden states of the PyTorch Gemma in bfloat16 are further from the reference than the
ones of the other implementations.
"""
import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        x = self._norm(x.float()).type_as(x)
        return x * (1 + self.weight)


class GemmaModel(nn.Module):
    def __init__(self, vocab=64, hidden=48, layers=8):
        super().__init__()
        self.embedder = nn.Embedding(vocab, hidden)
        self.norms = nn.ModuleList(RMSNorm(hidden) for _ in range(layers))
        self.mlps = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(layers))
        for norm in self.norms:
            nn.init.uniform_(norm.weight, 2.0, 16.0)

    def forward(self, input_ids):
        h = self.embedder(input_ids)
        for norm, mlp in zip(self.norms, self.mlps):
            h = h + mlp(norm(h))
        return h


def factory():
    torch.manual_seed(0)
    return GemmaModel().to(torch.bfloat16), (torch.randint(0, 64, (2, 12)),)
