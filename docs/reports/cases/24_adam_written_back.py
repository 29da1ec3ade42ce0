# workofart/ml-by-hand#85: bfloat16 weights without a master copy: after 100 Adam steps 0 of 768 weights have moved
# answer: the step is computed in float32 but rounded away when it is written back; keep a float32 master copy
import torch
from torch import nn


class AdamSteps(nn.Module):
    """A norm's weights after a number of steps."""

    def __init__(self, lr=6e-4, betas=(0.9, 0.999), eps=1e-8):
        super().__init__()
        self.w = nn.Parameter(torch.ones(768))
        self.lr, self.betas, self.eps = lr, betas, eps

    def forward(self, gradients):
        w, m, v = self.w, torch.zeros(768), torch.zeros(768)
        for step, grad in enumerate(gradients.float(), 1):
            m = self.betas[0] * m + (1 - self.betas[0]) * grad
            v = self.betas[1] * v + (1 - self.betas[1]) * grad**2
            update = (m / (1 - self.betas[0] ** step)) / ((v / (1 - self.betas[1] ** step)).sqrt() + self.eps)
            w = (w.float() - self.lr * update).to(self.w.dtype)
        return w


def factory():
    gradients = 0.02 * torch.randn(768) + 0.01 * torch.randn(30, 768)
    return AdamSteps().bfloat16(), (gradients.bfloat16(),)
