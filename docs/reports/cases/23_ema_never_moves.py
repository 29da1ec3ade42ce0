# d8ahazard/sd_dreambooth_extension#1417: with bfloat16 weights the EMA model never changes during training
# answer: updates of 1e-4 of the weights round to nothing; keep the EMA copy in float32, whatever the weights' dtype
import torch
from torch import nn


class EmaUpdate(nn.Module):
    """The averaged weights after some optimizer steps, given the weights of each step."""

    def __init__(self, decay=0.9999):
        super().__init__()
        self.decay = decay
        self.register_buffer("shadow", torch.randn(48, 48))

    def forward(self, history):
        shadow = self.shadow
        for weights in history:
            shadow = shadow - (1 - self.decay) * (shadow - weights)
        return shadow


def factory():
    ema = EmaUpdate().bfloat16()
    return ema, (ema.shadow + 0.05 * torch.randn(20, 48, 48).bfloat16(),)
