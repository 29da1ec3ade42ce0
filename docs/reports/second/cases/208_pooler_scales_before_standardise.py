"""https://github.com/unslothai/unsloth-zoo/pull/931 (2026)

Fine-tuning Gemma-4 31B Vision with dtype=torch.float16: the loss is NaN from step 1; text, audio and bfloat16 are fine.
"""

import torch
from torch import nn


class VisionPooler(nn.Module):
    def __init__(self, width=1152):
        super().__init__()
        self.root_hidden_size = width**0.5

    def forward(self, hidden_states, padding):
        hidden_states = hidden_states.masked_fill(padding[..., None], 0.0)
        hidden_states = hidden_states.unflatten(1, (-1, 4)).mean(2)
        return hidden_states * self.root_hidden_size


class VisionModel(nn.Module):
    def __init__(self, width=1152):
        super().__init__()
        self.pooler = VisionPooler(width)
        self.register_buffer("std_bias", torch.randn(width) * 12000)
        self.register_buffer("std_scale", torch.full((width,), 1 / 20000))
        self.embed_vision = nn.Linear(width, 64, bias=False)

    def forward(self, hidden_states, padding):
        pooled = self.pooler(hidden_states, padding)
        pooled = (pooled - self.std_bias) * self.std_scale
        pooled = pooled.to(self.embed_vision.weight.dtype)
        return nn.functional.rms_norm(self.embed_vision(pooled), (64,))


def factory():
    hidden_states = 900 * torch.randn(1, 16, 1152)
    hidden_states[:, :, 40] = 2330.0  # the encoder's massive channel
    padding = torch.zeros(1, 16, dtype=torch.bool)
    padding[:, 12:] = True
    return VisionModel().half().eval(), (hidden_states.half(), padding)
