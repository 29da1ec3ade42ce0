# huggingface/transformers#47258: AudioFlamingo3 in bfloat16: "expected scalar type Float but found BFloat16" (norm)
# answer: embed_positions is kept in float32 on purpose, so cast the sum back: (x + embed_positions.weight).to(x.dtype)
import torch
import torch.nn.functional as F
from torch import nn


class EncoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, h):
        return h + self.down(F.gelu(self.up(self.norm(h))))


class AudioEncoder(nn.Module):
    keep_in_fp32 = ("embed_positions",)

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(16, 32, 3, padding=1)
        self.embed_positions = nn.Embedding(20, 32)
        self.layers = nn.ModuleList(EncoderLayer() for _ in range(2))

    def load(self, dtype):
        self.to(dtype)
        for name in self.keep_in_fp32:
            getattr(self, name).float()
        return self.eval()

    def forward(self, mel):
        inputs_embeds = F.gelu(self.conv(mel)).transpose(1, 2)
        hidden = inputs_embeds + self.embed_positions.weight
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


def factory():
    return AudioEncoder().load(torch.bfloat16), (torch.randn(1, 16, 20).bfloat16(),)
