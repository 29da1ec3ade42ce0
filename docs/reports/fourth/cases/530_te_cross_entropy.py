"""https://github.com/NVIDIA/TransformerEngine/pull/3193 (2026)

Fused parallel cross entropy: with bf16 logits training drifts away from the unfused loss. Tokens the model is
already fairly sure of push their logit no further; with exactly the same logits given in fp32 they do.
"""
import torch
from torch import nn


class CrossEntropyFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, _input, target):
        rows = torch.arange(_input.shape[0])
        logits = _input.float()
        m = logits.amax(-1, keepdim=True)
        d = (logits - m).exp().sum(-1, keepdim=True)
        loss = (m + d.log()).squeeze(-1) - logits[rows, target]
        grad_input = torch.empty_like(_input)
        grad_input.copy_((logits - m).exp() / d)
        grad_input[rows, target] -= 1.0
        ctx.save_for_backward(grad_input)
        ctx.input_dtype = _input.dtype
        return loss

    @staticmethod
    def backward(ctx, grad_output):
        (grad_input,) = ctx.saved_tensors
        return (grad_input * grad_output.unsqueeze(-1)).to(ctx.input_dtype), None


class LMHead(nn.Module):
    def __init__(self, hidden=32, vocab=64):
        super().__init__()
        self.output_layer = nn.Linear(hidden, vocab, bias=False, dtype=torch.bfloat16)

    def forward(self, hidden_states, labels):
        logits = self.output_layer(hidden_states)
        logits.retain_grad()
        loss = CrossEntropyFunction.apply(logits, labels)
        loss.sum().backward()
        return logits.grad.gather(1, labels[:, None]).float()


def factory():
    torch.manual_seed(0)
    head = LMHead()
    with torch.no_grad():
        head.output_layer.weight.copy_(torch.cat([torch.eye(32), torch.zeros(32, 32)]) * 10.6)
    labels = torch.arange(12)
    hidden = nn.functional.one_hot(labels, 32).to(torch.bfloat16)
    return head, (hidden, labels)
