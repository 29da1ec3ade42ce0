"""https://github.com/huggingface/transformers/pull/48632 (2026)

The usage example of DeepSeek-OCR-2 fails as written on any device: the released checkpoint is bfloat16, and
the first convolution complains that input type (float) and bias type (c10::BFloat16) should be the same.
"""
import torch
from torch import nn


class DeepseekOcr2SamPatchEmbeddings(nn.Module):
    def __init__(self, hidden=32, patch=8):
        super().__init__()
        self.projection = nn.Conv2d(3, hidden, kernel_size=patch, stride=patch)

    def forward(self, pixel_values):
        embeddings = self.projection(pixel_values)
        return embeddings.permute(0, 2, 3, 1)


class DeepseekOcr2SamVisionEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch_embed = DeepseekOcr2SamPatchEmbeddings()
        self.neck = nn.LayerNorm(32)

    def forward(self, pixel_values):
        return self.neck(self.patch_embed(pixel_values))


def factory():
    torch.manual_seed(0)
    return DeepseekOcr2SamVisionEncoder().to(torch.bfloat16).eval(), (torch.rand(1, 3, 64, 64),)
