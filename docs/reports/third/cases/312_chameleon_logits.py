"""https://github.com/huggingface/transformers/pull/34147 (2024)

Generation with a bfloat16 checkpoint and a large vocabulary needs far more memory than the weights suggest;
the output of the head is held twice, once in twice the size, although no loss is asked for.
"""
import torch
import torch.nn.functional as F
from torch import nn


class ChameleonForConditionalGeneration(nn.Module):
    def __init__(self, vocab=4096, dim=64):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, dim)
        self.norm = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, vocab, bias=False)

    def forward(self, input_ids, labels=None):
        hidden_states = self.norm(self.embed_tokens(input_ids))
        logits = self.lm_head(hidden_states)
        logits = logits.float()
        if labels is None:
            return logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return loss, logits


def factory():
    torch.manual_seed(0)
    return ChameleonForConditionalGeneration().to(torch.bfloat16).eval(), (torch.randint(0, 4096, (2, 64)),)
