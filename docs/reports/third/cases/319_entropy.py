"""https://github.com/huggingface/trl/issues/7221 (2026)

The entropy metric of the trainer is NaN as soon as some tokens of the vocabulary are masked out of the logits,
in float32 as well as in float16.
"""
import torch
import torch.nn.functional as F
from torch import nn


def entropy_from_logits(logits, chunk_size=16):
    per_token = []
    for chunk in logits.flatten(0, -2).split(chunk_size, dim=0):
        logps = F.log_softmax(chunk, dim=-1)
        per_token.append(-(torch.exp(logps) * logps).sum(-1))
    return torch.cat(per_token).reshape(logits.shape[:-1])


class EntropyMetric(nn.Module):
    def __init__(self, dim=32, vocab=64):
        super().__init__()
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        self.register_buffer("allowed", torch.arange(vocab) < 60)

    def forward(self, hidden_states):
        logits = self.lm_head(hidden_states).masked_fill(~self.allowed, float("-inf"))
        return entropy_from_logits(logits)


def factory():
    torch.manual_seed(0)
    return EntropyMetric().half().eval(), (torch.randn(2, 10, 32).half(),)
