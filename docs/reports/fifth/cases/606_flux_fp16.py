"""https://github.com/huggingface/diffusers/pull/9097 (2024)

FLUX.1 loaded with torch_dtype=torch.float16 gives black images; with bfloat16 the images are right.
"""
import torch
from torch import nn
import torch.nn.functional as F


class DoubleBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm2_context = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.ff_context = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.ff_context[2].bias.data[3] = -41000.0

    def forward(self, hidden_states, encoder_hidden_states, gate):
        context = gate * self.ff_context(self.norm2_context(encoder_hidden_states))
        encoder_hidden_states = encoder_hidden_states + context
        return hidden_states, encoder_hidden_states


class SingleBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.proj_mlp = nn.Linear(dim, 4 * dim)
        self.proj_out = nn.Linear(5 * dim, dim)
        self.proj_out.bias.data[7] = 38000.0

    def forward(self, hidden_states, gate):
        residual = hidden_states
        norm = self.norm(hidden_states)
        attn = F.scaled_dot_product_attention(norm, norm, norm)
        mlp = F.gelu(self.proj_mlp(norm), approximate="tanh")
        hidden_states = residual + gate * self.proj_out(torch.cat([attn, mlp], dim=2))
        return hidden_states


class FluxTransformer(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.transformer_blocks = nn.ModuleList(DoubleBlock(dim) for _ in range(2))
        self.single_transformer_blocks = nn.ModuleList(SingleBlock(dim) for _ in range(2))
        self.norm_out = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.proj_out = nn.Linear(dim, 16)

    def forward(self, hidden_states, encoder_hidden_states, gate):
        for block in self.transformer_blocks:
            hidden_states, encoder_hidden_states = block(hidden_states, encoder_hidden_states, gate)
        hidden_states = torch.cat([encoder_hidden_states, hidden_states], dim=1)
        for block in self.single_transformer_blocks:
            hidden_states = block(hidden_states, gate)
        return self.proj_out(self.norm_out(hidden_states[:, encoder_hidden_states.shape[1]:]))


def factory():
    torch.manual_seed(0)
    model = FluxTransformer().to(torch.bfloat16).to(torch.float16).eval()
    return model, tuple(t.half() for t in (torch.randn(1, 16, 64), torch.randn(1, 8, 64), torch.ones(1, 1, 64)))
