"""https://github.com/hao-ai-lab/FastVideo/pull/1580 (2026)
The checkpoint says torch_dtype bfloat16, yet visual.dtype of Qwen2.5-VL always comes out
as float32 and the pixels are cast to it although the vision weights are bfloat16.
"""
from types import SimpleNamespace

import torch
from torch import nn


class Qwen2_5_VisionPatchEmbed(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.proj = nn.Linear(config.patch_dim, config.hidden_size, bias=False)

    def forward(self, hidden_states):
        return self.proj(hidden_states)


class Qwen2_5_VisionTransformerPretrainedModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.dtype = torch.bfloat16 if config.torch_dtype == "bfloat16" else torch.float32
        self.patch_embed = Qwen2_5_VisionPatchEmbed(config)
        self.merger = nn.Linear(config.hidden_size, config.out_hidden_size)

    def forward(self, hidden_states):
        return self.merger(self.patch_embed(hidden_states))


class Qwen2_5_VLModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.visual = Qwen2_5_VisionTransformerPretrainedModel(config.vision_config)

    def forward(self, pixel_values):
        pixel_values = pixel_values.type(self.visual.dtype)
        return self.visual(pixel_values)


def factory():
    torch.manual_seed(0)
    vision = SimpleNamespace(patch_dim=24, hidden_size=16, out_hidden_size=32, torch_dtype=None)
    config = SimpleNamespace(vision_config=vision, torch_dtype="bfloat16")
    model = Qwen2_5_VLModel(config).to(getattr(torch, config.torch_dtype))
    return model, (torch.randn(10, 24),)
