"""https://github.com/genomicsxai/alphagenome-pytorch/pull/47 (2026)

AlphaGenome with the mixed precision dtype policy: predict() works, but encode() on the same batch raises
RuntimeError: Input type (CUDABFloat16Type) and weight type (torch.cuda.FloatTensor) should be the same
"""
import torch
from torch import nn


class DnaEmbedder(nn.Module):
    def __init__(self, channels=24):
        super().__init__()
        self.conv1 = nn.Conv1d(4, channels, 15, padding=7)
        self.conv2 = nn.Conv1d(channels, channels, 5, padding=2)

    def forward(self, x):
        return self.conv2(nn.functional.gelu(self.conv1(x)))


class AlphaGenome(nn.Module):
    def __init__(self, compute_dtype):
        super().__init__()
        self.compute_dtype = compute_dtype
        self.embedder = DnaEmbedder()
        self.head = nn.Linear(24, 3)

    def _compute_embeddings_ncl(self, dna_sequence):
        return self.embedder(dna_sequence.to(self.compute_dtype).transpose(1, 2))

    def predict(self, dna_sequence):
        with torch.autocast(dna_sequence.device.type, dtype=self.compute_dtype):
            return self.head(self._compute_embeddings_ncl(dna_sequence).transpose(1, 2))

    def encode(self, dna_sequence):
        emb = self._compute_embeddings_ncl(dna_sequence)
        return emb.transpose(1, 2).float()

    def forward(self, dna_sequence):
        return self.encode(dna_sequence)


def factory():
    torch.manual_seed(0)
    bases = torch.randint(0, 4, (1, 256))
    return AlphaGenome(torch.bfloat16).eval(), (nn.functional.one_hot(bases, 4).float(),)
