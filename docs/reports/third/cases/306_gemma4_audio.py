"""https://github.com/unslothai/unsloth/issues/7224 (2026)

Gemma4 (E2B) notebook on a T4, question about an audio file:
RuntimeError: masked_scatter_: expected self and source to have same dtypes but got Float and Half
The same notebook works on an RTX 5060 Ti.
"""
import torch
from torch import nn


class Gemma4Model(nn.Module):
    audio_token_id = 7

    def __init__(self, vocab=32, dim=16):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, dim)
        self.audio_tower = nn.Linear(8, dim).half()
        self.vision_tower = nn.Linear(8, dim).half()

    def get_placeholder_mask(self, input_ids, inputs_embeds):
        return (input_ids == self.audio_token_id).unsqueeze(-1).expand_as(inputs_embeds)

    def forward(self, input_ids, input_features):
        inputs_embeds = self.embed_tokens(input_ids)
        audio_features = self.audio_tower(input_features.to(self.audio_tower.weight.dtype))
        audio_mask = self.get_placeholder_mask(input_ids, inputs_embeds)
        return inputs_embeds.masked_scatter(audio_mask, audio_features)


def factory():
    torch.manual_seed(0)
    ids = torch.tensor([[1, 7, 7, 7, 2, 3]])
    return Gemma4Model().eval(), (ids, torch.randn(3, 8))
