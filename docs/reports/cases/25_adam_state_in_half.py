# matanbt/TROPT#8: a soft prompt of a float16 model is infinite after the first Adam step; every later loss is NaN
# answer: Adam's eps 1e-8 and small squared gradients are zero in float16; optimise a float32 master copy of the prompt
import torch
from torch import nn


class SoftPrompt(nn.Module):
    """The trained prompt after two steps on a frozen encoder."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 32)
        self.encoder = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8))
        self.requires_grad_(False)

    def forward(self, trigger_ids, target):
        prompt = nn.Parameter(self.embed(trigger_ids).clone())
        optimizer = torch.optim.Adam([prompt], lr=1e-2)
        for _ in range(2):
            with torch.enable_grad():
                loss = (self.encoder(prompt).mean(0) - target).square().mean() * 1e-2
            optimizer.zero_grad()
            loss.backward(inputs=[prompt])
            optimizer.step()
        return prompt.detach()


def factory():
    return SoftPrompt().half(), (torch.randint(0, 40, (5,)), torch.randn(8).half())
