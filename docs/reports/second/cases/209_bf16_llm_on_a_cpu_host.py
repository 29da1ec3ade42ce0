"""https://github.com/debpalash/VoiceStudio/pull/2253 (2026)

CosyVoice3 on a host without CUDA stops in its language model: Float and BFloat16 must have the same dtype.
"""

import torch
from torch import nn


class Qwen2Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return x + self.o(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))


class Sidecar(nn.Module):
    """The managed CosyVoice process: language model, flow and vocoder."""

    def __init__(self, width=48, device="cpu", checkpoint_dtype=torch.bfloat16):
        super().__init__()
        self.text_embedding, self.speech_embedding = nn.Embedding(60, width), nn.Embedding(80, width)
        self.llm = nn.Sequential(Qwen2Layer(width), Qwen2Layer(width), nn.Linear(width, 80))
        self.flow = nn.Linear(width, 40)
        self.hift = nn.ConvTranspose1d(40, 1, 8, stride=4, padding=2)
        self.llm.to(device, checkpoint_dtype)

    def forward(self, text, prompt):
        lm_input = torch.cat([self.text_embedding(text), self.speech_embedding(prompt)], dim=1)
        tokens = self.llm(lm_input).argmax(-1)
        mel = self.flow(self.speech_embedding(tokens))
        return torch.tanh(self.hift(mel.transpose(1, 2)))


def factory():
    return Sidecar().eval(), (torch.randint(0, 60, (1, 7)), torch.randint(0, 80, (1, 9)))
