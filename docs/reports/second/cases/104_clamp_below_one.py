"""https://github.com/fastino-ai/GLiNER2/pull/155 (2026)

The loss prints normally at every step, and after one step in bfloat16 the whole model is NaN.
"""
import torch
from torch import nn


def marginal_pair_consistency_loss(pair_logits, pair_mask, starts, start_logits):
    probabilities = pair_logits.sigmoid()
    log_survival = torch.log1p(-probabilities.clamp(max=1.0 - 1e-6))
    log_survival = log_survival.masked_fill(~pair_mask, 0.0)
    summed = torch.zeros_like(start_logits).scatter_add_(1, starts, log_survival)
    return ((1 - summed.exp()) - start_logits.sigmoid()).square().mean()


class TrainStep(nn.Module):
    """The loss of a step and the gradients of the encoder."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(24, 48), nn.GELU())
        self.start, self.pair = nn.Linear(48, 1), nn.Linear(48, 6)

    def forward(self, words, pair_mask, starts):
        with torch.enable_grad():
            h = self.encoder(words)
            pair_logits = 12 * self.pair(h).flatten(1)  # boundaries it is sure of
            loss = marginal_pair_consistency_loss(pair_logits, pair_mask, starts, self.start(h)[..., 0])
            grads = torch.autograd.grad(loss, list(self.encoder.parameters()))
        return loss.detach(), torch.cat([g.flatten() for g in grads])


def factory():
    words, mask = 3 * torch.randn(4, 10, 24).bfloat16(), torch.rand(4, 60) > 0.3
    return TrainStep().bfloat16(), (words, mask, torch.arange(10).repeat_interleave(6).expand(4, 60))
