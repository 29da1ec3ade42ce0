"""https://github.com/marin-community/marin/pull/8217 (2026)

Streaming cross entropy with float32 parameters and bfloat16 compute: the gradient of the head is off
against a dense float32 reference, the more so the larger the logits are.
"""
import torch
from torch import nn


class StreamingCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, labels, v_block_size):
        lse = torch.full((x.shape[0],), float("-inf"))
        label_logit = torch.zeros(x.shape[0])
        for start in range(0, w.shape[1], v_block_size):
            logits = x @ w[:, start:start + v_block_size]
            lse = torch.logaddexp(lse, torch.logsumexp(logits.float(), -1))
            rows = (labels >= start) & (labels < start + v_block_size)
            label_logit[rows] = logits[rows, labels[rows] - start].float()
        ctx.save_for_backward(x, w, labels, lse)
        ctx.v_block_size = v_block_size
        return (lse - label_logit).mean()

    @staticmethod
    def backward(ctx, grad_loss):
        x, w, labels, lse = ctx.saved_tensors
        dx, dw = torch.zeros(x.shape), torch.zeros(w.shape)
        for start in range(0, w.shape[1], ctx.v_block_size):
            block = w[:, start:start + ctx.v_block_size].float()
            probs = torch.exp(x.float() @ block - lse.unsqueeze(-1))
            onehot = torch.arange(start, start + block.shape[1]) == labels.unsqueeze(-1)
            dlogits = (probs - onehot.float()) * grad_loss / x.shape[0]
            dx += dlogits @ block.T
            dw[:, start:start + ctx.v_block_size] = x.float().T @ dlogits
        return dx.to(x.dtype), dw.to(w.dtype), None, None


class GrugHead(nn.Module):
    def __init__(self, dim=64, vocab=512, compute_dtype=torch.bfloat16):
        super().__init__()
        self.lm_head = nn.Parameter(torch.randn(dim, vocab))
        self.compute_dtype = compute_dtype

    def forward(self, hidden, labels):
        x, w = hidden.to(self.compute_dtype), self.lm_head.to(self.compute_dtype)
        loss = StreamingCrossEntropy.apply(x, w, labels, 128)
        loss.backward()
        return loss.detach(), self.lm_head.grad


def factory():
    torch.manual_seed(0)
    labels = torch.randint(512, (32,))
    model = GrugHead()
    hidden = 1.2 * torch.randn(32, 64) + 0.5 * model.lm_head.detach().T[labels]
    return model, (hidden, labels)
