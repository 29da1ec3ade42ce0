"""https://github.com/sgl-project/sglang-omni/pull/2148 (2026)

Qwen3-TTS with a repetition penalty of 1.05 picks other codes than the reference where two scores are close.
"""
import torch
from torch import nn


class Talker(nn.Module):
    def __init__(self, states=6):
        super().__init__()
        self.embed, self.codec_head = nn.Embedding(states, states), nn.Linear(states, 8, bias=False)
        with torch.no_grad():
            self.embed.weight.copy_(torch.eye(states))
            self.codec_head.weight.copy_(torch.randint(-12, 10, (8, states)))
            self.codec_head.weight[:2] = torch.tensor([[16.0], [15.25]])  # a close race in each state

    def forward(self, codes):
        return self.codec_head(self.embed(codes))


class Sampler(nn.Module):
    def __init__(self):
        super().__init__()
        self.talker = Talker()

    def forward(self, codes, repetition_penalty=1.05):
        next_token_logits = self.talker(codes)
        seen = torch.zeros(next_token_logits.shape, dtype=torch.bool)
        seen[:, 0] = True
        penalised = torch.where(
            next_token_logits > 0, next_token_logits / repetition_penalty, next_token_logits * repetition_penalty
        )
        next_token_logits[seen] = penalised[seen]
        return next_token_logits.argmax(-1)


def factory():
    return Sampler().bfloat16().eval(), (torch.arange(6),)
