"""https://github.com/genlm/genlm-backend/pull/66 (2026)

Next-token log-probabilities of the HF backend (bf16 model) differ from those of
the vLLM backend, the more the deeper in the tail: 0.126 nats, 13 % of the
probability. The argmax is the same.
"""
import torch
from torch import nn


class AsyncTransformer(nn.Module):
    def __init__(self, vocab=2000, width=64):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.body = nn.Linear(width, width)
        self.lm_head = nn.Linear(width, vocab, bias=False)
        nn.init.normal_(self.lm_head.weight, std=0.9)

    def next_token_logprobs_uncached(self, ids):
        hidden = torch.tanh(self.body(self.embed(ids)))
        logits = self.lm_head(hidden)
        return torch.log_softmax(logits, dim=-1)

    def forward(self, ids):
        return self.next_token_logprobs_uncached(ids)


def factory():
    torch.manual_seed(0)
    return AsyncTransformer().to(torch.bfloat16).eval(), (torch.randint(0, 2000, (2, 11)),)
