"""https://github.com/ArcInstitute/state/pull/213, 2025.
With mask_attn=True the model raises "bitwise_and" not implemented for 'Float'."""
import torch
from torch import nn


class StateTransitionPerturbationModel(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.num_heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, seq_input):
        B, S, D = seq_input.shape
        attention_mask = torch.eye(S).expand(B, self.num_heads, S, S)
        causal = torch.ones(S, S, dtype=torch.bool).tril()
        attention_mask = attention_mask & causal
        q, k, v = (t.view(B, S, self.num_heads, -1).transpose(1, 2) for t in self.qkv(seq_input).chunk(3, -1))
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask)


def factory():
    torch.manual_seed(0)
    return StateTransitionPerturbationModel().eval(), (torch.randn(2, 8, 32),)
