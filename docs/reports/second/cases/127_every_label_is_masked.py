"""https://github.com/huggingface/trl/pull/5826 (2026)

The eval loss of a preference training in bf16 is NaN from the first batch, while the rewards are finite.
"""
import torch
import torch.nn.functional as F
from torch import nn


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(90, 32), nn.Linear(32, 32), nn.Linear(32, 90)

    def forward(self, tokens):
        return self.head(torch.tanh(self.rnn(self.embed(tokens).cumsum(1))))


class TpoLoss(nn.Module):
    def __init__(self, max_length=12, beta=0.1):
        super().__init__()
        self.policy, self.max_length, self.beta = Policy(), max_length, beta

    def logps(self, logits, tokens, mask):
        picked = torch.log_softmax(logits.float(), -1).gather(-1, tokens[:, 1:, None])[..., 0]
        return (picked * mask[:, 1:]).sum(-1)

    def forward(self, tokens, completion_mask):
        tokens, completion_mask = tokens[:, : self.max_length], completion_mask[:, : self.max_length]
        logits = self.policy(tokens)[:, :-1]
        rewards = self.beta * self.logps(logits, tokens, completion_mask)
        chosen, rejected = rewards.chunk(2)
        kept = completion_mask[:, 1:].bool()
        nll = F.cross_entropy(logits.float()[kept], tokens[:, 1:][kept])
        return -F.logsigmoid(chosen - rejected).mean() + nll, rewards


def factory():
    tokens, mask = torch.randint(0, 90, (4, 20)), torch.zeros(4, 20, dtype=torch.long)
    mask[:, 14:] = 1  # the prompts are longer than max_length
    return TpoLoss().bfloat16().eval(), (tokens, mask)
