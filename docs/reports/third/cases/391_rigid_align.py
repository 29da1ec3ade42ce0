"""https://github.com/RosettaCommons/foundry/pull/283 (2026)
rf3 motif scaffolding with realignment dies at the first realignment step when the model
runs in its default bfloat16: the SVD is not implemented for BFloat16.
"""
import torch
from torch import nn


class WeightedRigidAlign(nn.Module):
    def weighted_rigid_align(self, X_L, X_gt_L, w_L):
        w = w_L[..., None]
        u_X = (X_L * w).sum(-2) / w.sum(-2)
        u_X_gt = (X_gt_L * w).sum(-2) / w.sum(-2)
        X_L = X_L - u_X.unsqueeze(-2)
        X_gt_L = X_gt_L - u_X_gt.unsqueeze(-2)
        C = torch.einsum("bji,bjk->bik", w * X_gt_L, X_L)
        U, S, V = torch.linalg.svd(C)
        R = U @ V
        F = torch.eye(3, dtype=R.dtype).repeat(R.shape[0], 1, 1)
        F[..., -1, -1] = torch.sign(torch.linalg.det(R.float())).to(R.dtype)
        R = U @ F @ V
        return (X_gt_L @ R.to(X_gt_L.dtype)) + u_X.unsqueeze(-2)

    def forward(self, X_L, X_gt_L, w_L):
        return self.weighted_rigid_align(X_L, X_gt_L, w_L)


def factory():
    torch.manual_seed(0)
    X = torch.randn(2, 24, 3)
    c, s = torch.cos(torch.tensor(0.7)), torch.sin(torch.tensor(0.7))
    rot = torch.tensor([[c, -s, 0], [s, c, 0], [0, 0, 1]])
    gt = X @ rot + 0.5
    return WeightedRigidAlign(), (X.bfloat16(), gt.bfloat16(), torch.ones(2, 24).bfloat16())
