"""https://github.com/allenai/OLMo-core/pull/370 (2025)

Training with the fused linear cross entropy in bfloat16 is less stable than with the plain loss; the loss is the same.
"""

import torch
from torch import nn


class FusedLinearCrossEntropy(nn.Module):
    """The gradient of the head's weight, chunk by chunk, so that the logits of all tokens never exist."""

    def __init__(self, width=64, vocabulary=96, chunk=8, accum_dtype=None):
        super().__init__()
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.chunk, self.accum_dtype = chunk, accum_dtype

    @torch.no_grad()
    def forward(self, hidden, labels):
        weight = self.lm_head.weight
        grad_weight = torch.zeros_like(weight, dtype=self.accum_dtype)
        for h, y in zip(hidden.split(self.chunk), labels.split(self.chunk), strict=True):
            logits = (h @ weight.t()).float()
            grad_logits = (logits.softmax(-1) - nn.functional.one_hot(y, weight.shape[0])) / len(labels)
            grad_weight += torch.mm(grad_logits.to(h.dtype).t(), h).float()
        return grad_weight.to(weight.dtype)


def factory():
    hidden = torch.randn(2048, 64) + 1.0
    return FusedLinearCrossEntropy().bfloat16(), (hidden.bfloat16(), torch.randint(0, 96, (2048,)))
