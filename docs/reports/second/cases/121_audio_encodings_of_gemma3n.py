"""https://github.com/huggingface/transformers/pull/39743 (2025)

Gemma 3n in bfloat16 works on text and images; an audio file raises in the first convolution of the audio tower.
"""
import torch
import torch.nn.functional as F
from torch import nn


class ConvBlock(nn.Module):
    def __init__(self, channels_in, channels_out):
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, 3, stride=2, bias=False)
        self.norm = nn.GroupNorm(1, channels_out)

    def forward(self, audio_encodings):
        audio_encodings_padded = F.pad(audio_encodings, (1, 1, 0, 2))
        audio_encodings_conv = self.conv(audio_encodings_padded)
        return torch.relu(self.norm(audio_encodings_conv))


class AudioTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv_0, self.conv_1 = ConvBlock(1, 8), ConvBlock(8, 16)
        self.input_proj = nn.Linear(16 * 8, 48)

    def forward(self, audio_mel):
        x = self.conv_1(self.conv_0(audio_mel[:, None]))
        return self.input_proj(x.transpose(1, 2).flatten(2))


class Gemma3n(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens, self.audio_tower = nn.Embedding(80, 48), AudioTower()
        self.lm_head = nn.Linear(48, 80, bias=False)

    def forward(self, input_ids, input_features):
        audio = self.audio_tower(input_features)
        return self.lm_head(torch.cat([audio, self.embed_tokens(input_ids)], 1))


def factory():
    return Gemma3n().bfloat16().eval(), (torch.randint(0, 80, (1, 6)), torch.randn(1, 40, 32))
