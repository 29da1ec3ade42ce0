"""https://github.com/huggingface/accelerate/issues/2413 (2024)

mixed_precision="fp16" is set and the logits are still float32: is it applied at all?
"""

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 64)
        self.encoder = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
        self.classifier = nn.Linear(64, 3)

    def forward(self, tokens):
        return self.classifier(self.encoder(self.embed(tokens)).mean(1))


class Prepared(nn.Module):
    """What accelerator.prepare(model) makes of a model."""

    def __init__(self, model, mixed_precision=torch.float16):
        super().__init__()
        self.model, self.mixed_precision = model, mixed_precision

    def forward(self, tokens):
        with torch.autocast("cpu", dtype=self.mixed_precision):
            outputs = self.model(tokens)
        return outputs.float()  # convert_outputs_to_fp32


def factory():
    return Prepared(Classifier()).eval(), (torch.randint(0, 50, (2, 12)),)
