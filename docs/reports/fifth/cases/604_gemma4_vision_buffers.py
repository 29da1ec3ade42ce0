"""https://github.com/NVIDIA-NeMo/Automodel/pull/2419 (2026)

FSDP2 with float32 master weights and a bfloat16 compute dtype: Gemma 4 with a frozen vision tower
stops with a dtype mismatch in the multimodal projector.
"""
import torch
from torch import nn


class VisionTower(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.patch_embedder = nn.Linear(48, dim)
        self.encoder = nn.Sequential(nn.RMSNorm(dim), nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))
        self.register_buffer("std_bias", torch.randn(dim))
        self.register_buffer("std_scale", torch.rand(dim) + 0.5)

    def forward(self, pixel_values):
        hidden_states = self.encoder(self.patch_embedder(pixel_values))
        return (hidden_states - self.std_bias) * self.std_scale


class Gemma4(nn.Module):
    def __init__(self, dim=32, text_dim=64):
        super().__init__()
        self.vision_tower = VisionTower(dim).requires_grad_(False)
        self.multi_modal_projector = nn.Linear(dim, text_dim, bias=False)
        self.norm = nn.RMSNorm(text_dim)

    def forward(self, pixel_values):
        return self.norm(self.multi_modal_projector(self.vision_tower(pixel_values)))


def fully_shard(model, param_dtype):
    def unshard(module, args):
        for param in module.parameters():
            param.data = param.data.to(param_dtype)
        return tuple(a.to(param_dtype) if a.is_floating_point() else a for a in args)
    model.register_forward_pre_hook(unshard)
    return model


def factory():
    torch.manual_seed(0)
    model = Gemma4()
    model = fully_shard(model, param_dtype=torch.bfloat16)
    return model, (torch.randn(2, 9, 48),)
