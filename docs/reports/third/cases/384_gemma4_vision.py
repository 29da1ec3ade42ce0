"""https://github.com/vllm-project/vllm/pull/40347 (2026)
Gemma 4 31B with AWQ or --dtype float16 answers <pad> for every image and nothing is in the
log; bfloat16 works, and so does the E4B model.
"""
import torch
from torch import nn


class Gemma4VisionTower(nn.Module):
    def __init__(self, dim=32, standardize=True):
        super().__init__()
        self.patch_embed = nn.Linear(48, dim)
        self.layer = nn.Linear(dim, dim)
        self.gain = nn.Parameter(torch.ones(dim))
        self.standardize = standardize
        std_bias, std_scale = torch.randn(dim), torch.ones(dim)
        std_bias[3], std_scale[3] = 5.4e4, 1e-4
        self.gain.data[3], self.layer.bias.data[3] = -1.0e4, 3.0
        self.register_buffer("std_bias", std_bias)
        self.register_buffer("std_scale", std_scale)

    def forward(self, pixel_values):
        h = torch.relu(self.layer(self.patch_embed(pixel_values))) * self.gain
        if self.standardize:
            h = (h - self.std_bias) * self.std_scale
        return h


class Gemma4MultimodalEmbedder(nn.Module):
    def __init__(self, dim=32, text=16):
        super().__init__()
        self.embedding_pre_projection_norm = nn.RMSNorm(dim, elementwise_affine=False)
        self.embedding_projection = nn.Linear(dim, text, bias=False)

    def forward(self, x):
        x = self.embedding_pre_projection_norm(x)
        return self.embedding_projection(x.to(self.embedding_projection.weight.dtype))


class Gemma4ForConditionalGeneration(nn.Module):
    def __init__(self):
        super().__init__()
        self.vision_tower = Gemma4VisionTower()
        self.embed_vision = Gemma4MultimodalEmbedder()

    def forward(self, pixel_values):
        return self.embed_vision(self.vision_tower(pixel_values))


def factory():
    torch.manual_seed(0)
    model = Gemma4ForConditionalGeneration().half()
    return model, (2 * torch.randn(20, 48).half(),)
