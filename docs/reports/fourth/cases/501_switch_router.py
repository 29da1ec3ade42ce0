"""https://github.com/huggingface/transformers/pull/45074, 2026.
Switch Transformers loaded in bfloat16 raises in the router after the MoE refactor:
expected mat1 and mat2 to have the same dtype, float and bfloat16."""
import torch
from torch import nn


class SwitchTransformersTop1Router(nn.Module):
    def __init__(self, dim=32, experts=4):
        super().__init__()
        self.classifier = nn.Linear(dim, experts, bias=False)
        self.dtype = torch.float32

    def forward(self, hidden_states):
        self.input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(self.dtype)
        router_logits = self.classifier(hidden_states)
        probs = torch.softmax(router_logits, dim=-1, dtype=self.dtype).to(self.input_dtype)
        return torch.max(probs, dim=-1)


def factory():
    torch.manual_seed(0)
    return SwitchTransformersTop1Router().to(torch.bfloat16).eval(), (torch.randn(2, 6, 32, dtype=torch.bfloat16),)
