"""https://github.com/Modalities/modalities/pull/464 (2026)

The causal-LM loss under FSDP2's bfloat16 policy moves in steps of 0.25 where it is large.
"""

import torch
from torch import nn


class CLMCrossEntropyLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.loss_fun = nn.CrossEntropyLoss(reduction="mean")

    def forward(self, logits, labels):
        shift_logits, shift_labels = logits[:, :-1].contiguous(), labels[:, 1:].contiguous()
        return self.loss_fun(shift_logits.view(-1, shift_logits.size(-1)), shift_labels.view(-1))


class Trainer(nn.Module):
    """One batch's loss; the policy casts parameters and inputs, no autocast is on."""

    def __init__(self):
        super().__init__()
        self.embed, self.lm_head = nn.Embedding(200, 64), nn.Linear(64, 200, bias=False)
        self.loss = CLMCrossEntropyLoss()
        with torch.no_grad():
            self.lm_head.weight.mul_(20)

    def forward(self, tokens):
        return self.loss(self.lm_head(self.embed(tokens)), tokens)


def factory():
    return Trainer().bfloat16(), (torch.randint(0, 200, (2, 33)),)
