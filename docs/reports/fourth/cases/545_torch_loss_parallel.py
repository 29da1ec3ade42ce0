"""https://github.com/pytorch/pytorch/issues/130549 (2024)

loss_parallel with bf16 logits, raised in loss_micro_step.backward():
RuntimeError: Index put requires the source and destination dtypes match,
got BFloat16 for the destination and Float for the source.
"""
import torch
from torch import nn


class LossParallelCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target, ignore_index):
        logp = torch.log_softmax(logits, dim=-1)
        mask = target == ignore_index
        safe_target = target.masked_fill(mask, 0)
        ctx.save_for_backward(logp, safe_target, mask)
        picked = logp[torch.arange(target.numel()), safe_target]
        return -picked.masked_fill(mask, 0).sum() / (~mask).sum()

    @staticmethod
    def backward(ctx, grad_output):
        logp, safe_target, mask = ctx.saved_tensors
        grad_input = torch.zeros_like(logp)
        grad_update = mask.float() - 1.0
        rows = torch.arange(safe_target.numel())
        grad_input[rows, safe_target] = grad_update
        grad_output = grad_output / (~mask).sum()
        grad = grad_input - torch.exp(logp) * grad_input.sum(-1, keepdim=True)
        return grad * grad_output, None, None


class PretrainStep(nn.Module):
    def __init__(self, width=16, vocab=32):
        super().__init__()
        self.lm_head = nn.Linear(width, vocab, bias=False)

    def forward(self, hidden, target):
        loss = LossParallelCrossEntropy.apply(self.lm_head(hidden), target, -100)
        loss.backward()
        return loss.detach(), self.lm_head.weight.grad


def factory():
    torch.manual_seed(0)
    target = torch.randint(0, 32, (12,))
    target[3] = -100
    return PretrainStep().to(torch.bfloat16), (torch.randn(12, 16, dtype=torch.bfloat16), target)
