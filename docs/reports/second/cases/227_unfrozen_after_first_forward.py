"""https://github.com/pytorch/pytorch/issues/186998 (2026)

FSDP2 with a bfloat16 policy: a model evaluated with requires_grad=False first, then unfrozen, raises in its backward.
"""

import torch
from torch import nn


class FSDPParamGroup(nn.Module):
    """float32 shards, computed with in bfloat16, whose gradients are reduced and brought back to float32."""

    def __init__(self, module, param_dtype=torch.bfloat16, reduce_dtype=torch.float32):
        super().__init__()
        self.module, self.param_dtype, self.reduce_dtype = module, param_dtype, reduce_dtype
        self.orig_dtype, self.initialised = None, False

    def _init_mp_dtypes(self):
        trainable_params = [p for p in self.module.parameters() if p.requires_grad]
        params = trainable_params
        self.orig_dtype = next(iter({p.dtype for p in params})) if params else None
        self.initialised = True

    def forward(self, x):
        if not self.initialised:
            self._init_mp_dtypes()
        self.unsharded = {n: p.detach().to(self.param_dtype).requires_grad_(p.requires_grad) for n, p in self.named()}
        return torch.func.functional_call(self.module, self.unsharded, (x.to(self.param_dtype),))

    def named(self):
        return list(self.module.named_parameters())

    def post_backward(self):
        for name, parameter in self.named():
            grad = self.unsharded[name].grad
            if self.orig_dtype is not None:
                grad = grad.to(self.reduce_dtype).to(self.orig_dtype)
            parameter.grad = grad


class Trainer(nn.Module):
    def __init__(self):
        super().__init__()
        self.group = FSDPParamGroup(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)))

    @torch.enable_grad()
    def forward(self, x, target):
        self.group.module.requires_grad_(False)
        before = self.group(x).float().sub(target).square().mean()  # an evaluation, frozen
        self.group.module.requires_grad_(True)
        loss = self.group(x).float().sub(target).square().mean()
        loss.backward()
        self.group.post_backward()
        return before, torch.stack([p.grad.norm() for p in self.group.module.parameters()])


def factory():
    return Trainer(), (torch.randn(16, 32), torch.randn(16, 8))
