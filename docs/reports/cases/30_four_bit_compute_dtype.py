# bitsandbytes-foundation/bitsandbytes#2077: load_in_4bit in a bfloat16 model is slow and says nothing
# answer: bnb_4bit_compute_dtype defaults to float32, so every layer widens its input; set it to torch.bfloat16
import torch
import torch.nn.functional as F
from torch import nn


class Linear4bit(nn.Module):
    def __init__(self, n_in, n_out, compute_dtype=torch.float32):
        super().__init__()
        self.compute_dtype = compute_dtype
        weight = torch.randn(n_out, n_in) / n_in**0.5
        absmax = weight.abs().amax(1, keepdim=True)
        self.register_buffer("codes", ((weight / absmax * 7).round() + 8).to(torch.uint8))
        self.register_buffer("absmax", absmax)

    def dequantise(self):
        return (self.codes.to(self.compute_dtype) - 8) / 7 * self.absmax.to(self.compute_dtype)

    def forward(self, x):
        wide = x.to(self.compute_dtype)
        return F.linear(wide, self.dequantise()).to(x.dtype)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 128)
        self.layers = nn.ModuleList(Linear4bit(128, 128) for _ in range(4))
        self.norm, self.head = nn.LayerNorm(128), nn.Linear(128, 100)

    def forward(self, tokens):
        h = self.embed(tokens)
        for layer in self.layers:
            h = h + F.silu(layer(h))
        return self.head(self.norm(h))


def factory():
    return Model().bfloat16().eval(), (torch.randint(0, 100, (1, 32)),)
