# zichongli5/NorMuon#4: training in bfloat16: "expected dtype c10::BFloat16 for `end` but got dtype float" in lerp_
# answer: the explicit .float() on the orthogonalised update is what differs from the second moment's dtype; remove it
import torch
from torch import nn


def orthogonalise(grad, steps=3):
    x = grad.bfloat16()
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        a = x @ x.T
        x = 2.0 * x - 1.5 * (a @ x) + 0.5 * (a @ a @ x)
    return x.float()


class NorMuonStep(nn.Module):
    """One optimizer step as a call: returns the weights after it."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(32, 64) / 8)

    def forward(self, grad, second_momentum, lr=0.02, beta2=0.95):
        update = orthogonalise(grad)
        v_mean = update.square().mean(-1, keepdim=True)
        second_momentum = second_momentum.clone().lerp_(v_mean, 1 - beta2)
        update = update / (second_momentum.sqrt() + 1e-8)
        return self.w - lr * update.to(self.w.dtype)


def factory():
    grad = torch.randn(32, 64).bfloat16()
    return NorMuonStep().bfloat16(), (grad, torch.rand(32, 1).bfloat16())
