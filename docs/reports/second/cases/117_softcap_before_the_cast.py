"""https://github.com/karpathy/nanochat/pull/326 (2025)

The loss is computed in float32, and yet the logits are no more exact than bfloat16; they are capped by a tanh.
"""
import torch
import torch.nn.functional as F
from torch import nn


class Gpt(nn.Module):
    def __init__(self, vocab=120, width=64):
        super().__init__()
        self.wte, self.lm_head = nn.Embedding(vocab, width), nn.Linear(width, vocab, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        with torch.no_grad():
            self.lm_head.weight.mul_(16)

    def forward(self, idx, targets):
        x = F.rms_norm(self.wte(idx), (64,))
        x = F.rms_norm(x + self.down(F.relu(self.up(x)).square()), (64,))
        softcap = 15
        logits = self.lm_head(x)
        logits = softcap * torch.tanh(logits / softcap)
        logits = logits.float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")


def factory():
    return Gpt().bfloat16().eval(), (torch.randint(0, 120, (2, 24)), torch.randint(0, 120, (2, 24)))
