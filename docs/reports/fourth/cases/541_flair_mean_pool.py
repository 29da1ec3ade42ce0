"""https://github.com/flairNLP/flair/pull/3651 (2025)

Transformer word embeddings with the encoder loaded in bfloat16:
RuntimeError: scatter(): Expected self.dtype to be equal to src.dtype
"""
import torch
from torch import nn


def fill_mean_token_embeddings(out, hidden, word_ids):
    valid = word_ids >= 0
    slots = word_ids.clamp(min=0)
    out.scatter_add_(
        1, slots.unsqueeze(-1).expand(-1, -1, out.shape[-1]),
        hidden * valid.unsqueeze(-1).float())
    counts = torch.zeros_like(out[:, :, 0])
    counts.scatter_add_(1, slots, valid.float())
    return out / counts.clamp(min=1).unsqueeze(-1)


class TransformerEmbeddings(nn.Module):
    def __init__(self, vocab=50, width=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.encoder = nn.Linear(width, width)

    def forward(self, ids, word_ids):
        hidden = torch.tanh(self.encoder(self.embed(ids)))
        out = hidden.new_zeros(ids.shape[0], int(word_ids.max()) + 1, hidden.shape[-1])
        return fill_mean_token_embeddings(out, hidden, word_ids)


def factory():
    torch.manual_seed(0)
    ids = torch.randint(0, 50, (2, 7))
    word_ids = torch.tensor([[-1, 0, 0, 1, 2, 2, -1], [-1, 0, 1, 1, 1, 2, -1]])
    return TransformerEmbeddings().to(torch.bfloat16), (ids, word_ids)
