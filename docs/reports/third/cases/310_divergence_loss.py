"""https://github.com/vllm-project/speculators/pull/788 (2026)

Draft-model training under FSDP2 with param_dtype=bfloat16 and no autocast: the better the draft matches the
target, the noisier its gradients, 10-20 % of their magnitude near convergence.
"""
import torch
import torch.nn.functional as F
from torch import nn


def kl_div_loss(logits, targets):
    log_p = F.log_softmax(logits, dim=-1)
    target_p = F.softmax(targets, dim=-1)
    return F.kl_div(log_p, target_p, reduction="none").sum(dim=-1).mean()


class DraftTrainStep(nn.Module):
    def __init__(self, hidden=32, vocab=512):
        super().__init__()
        self.lm_head = nn.Linear(hidden, vocab, bias=False)
        self.verifier_lm_head = nn.Linear(hidden, vocab, bias=False).requires_grad_(False)
        with torch.no_grad():
            self.lm_head.weight.mul_(12.0)
            self.verifier_lm_head.weight.copy_(self.lm_head.weight + 0.005 * torch.randn(vocab, hidden))

    def forward(self, hidden_states):
        logits = self.lm_head(hidden_states)
        logits.retain_grad()
        targets = self.verifier_lm_head(hidden_states)
        loss = kl_div_loss(logits, targets)
        loss.backward()
        return loss, logits.grad


def factory():
    torch.manual_seed(0)
    return DraftTrainStep().to(torch.bfloat16), (torch.randn(16, 32, dtype=torch.bfloat16),)
