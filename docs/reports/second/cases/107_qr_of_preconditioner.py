"""https://github.com/HomebrewML/HeavyBall/issues/57 (2025)

ForeachSOAP on bfloat16 parameters stops in the QR decomposition of its preconditioner.
"""
import torch
from torch import nn


def get_orthogonal_matrix_qr(gg, q):
    tmp = q.T @ gg @ q
    sort_idx = torch.argsort(torch.diag(tmp), descending=True)
    power_iter = gg @ q[:, sort_idx]
    q, _ = torch.linalg.qr(power_iter)
    return q


class SoapStep(nn.Module):
    """A step of SOAP on one matrix, given two gradients."""

    def __init__(self, rows=16, columns=12, beta=0.95, lr=0.01):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, columns))
        self.beta, self.lr = beta, lr

    def forward(self, gradients):
        rows = self.weight.shape[0]
        gg = torch.zeros(rows, rows, dtype=self.weight.dtype)
        q = torch.eye(rows, dtype=self.weight.dtype)
        weight = self.weight
        for grad in gradients:
            gg = self.beta * gg + (1 - self.beta) * (grad @ grad.T)
            q = get_orthogonal_matrix_qr(gg, q)
            projected = q.T @ grad
            weight = weight - self.lr * (q @ (projected / (projected.abs() + 1e-3)))
        return weight


def factory():
    return SoapStep().bfloat16(), (torch.randn(2, 16, 12).bfloat16(),)
