"""https://github.com/huggingface/diffusers/pull/12814 (2025)

Kandinsky 5 transformer loaded in bfloat16 on a machine without CUDA: importing the model warns that CUDA is not
available and autocast is disabled, and the first call crashes with
RuntimeError: mat1 and mat2 must have the same dtype, but got Float and BFloat16
"""
import math

import torch
from torch import nn


class Kandinsky5TimeEmbeddings(nn.Module):
    def __init__(self, model_dim, time_dim, max_period=10000.0):
        super().__init__()
        half = model_dim // 2
        self.freqs = torch.exp(-math.log(max_period) * torch.arange(half, dtype=torch.float32) / half)
        self.in_layer = nn.Linear(model_dim, time_dim)
        self.activation = nn.SiLU()
        self.out_layer = nn.Linear(time_dim, time_dim)

    @torch.autocast(device_type="cuda", dtype=torch.float32)
    def forward(self, time):
        args = torch.outer(time, self.freqs.to(time.device))
        emb = torch.cat([args.cos(), args.sin()], dim=-1)
        return self.out_layer(self.activation(self.in_layer(emb)))


class Kandinsky5Transformer3DModel(nn.Module):
    def __init__(self, dim=32, time_dim=64):
        super().__init__()
        self.time_embeddings = Kandinsky5TimeEmbeddings(dim, time_dim)
        self.modulation = nn.Linear(time_dim, 2 * dim)
        self.visual_embeddings = nn.Linear(16, dim)
        self.norm = nn.LayerNorm(dim, elementwise_affine=False)
        self.out_layer = nn.Linear(dim, 16)

    def forward(self, hidden_states, timestep):
        x = self.visual_embeddings(hidden_states)
        shift, scale = self.modulation(self.time_embeddings(timestep))[:, None].chunk(2, dim=-1)
        return self.out_layer(self.norm(x) * (1 + scale) + shift)


def factory():
    torch.manual_seed(0)
    model = Kandinsky5Transformer3DModel().to(torch.bfloat16).eval()
    return model, (torch.randn(1, 12, 16, dtype=torch.bfloat16), torch.tensor([812.0]))
