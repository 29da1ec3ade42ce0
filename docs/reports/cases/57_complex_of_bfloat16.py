# tenstorrent/tt-metal#27426: "Expected both inputs to be Half, Float or Double tensors but got BFloat16 and BFloat16"
# answer: freqs_cis is complex and no complex number is made of bfloat16; build it from float32 frequencies
import torch
from torch import nn


def precompute_freqs_cis(width, end, dtype, theta=10000.0):
    freqs = 1.0 / (theta ** (torch.arange(0, width, 2).float() / width))
    freqs = torch.outer(torch.arange(end).float(), freqs).to(dtype)
    return torch.polar(torch.ones_like(freqs), freqs)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Linear(32, 32, bias=False) for _ in range(3))

    def rotate(self, x, freqs_cis):
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * freqs_cis).flatten(-2).type_as(x)

    def forward(self, x):
        freqs_cis = precompute_freqs_cis(32, x.shape[1], self.wq.weight.dtype)
        q, k = self.rotate(self.wq(x), freqs_cis), self.rotate(self.wk(x), freqs_cis)
        return nn.functional.scaled_dot_product_attention(q, k, self.wv(x))


def factory():
    return Attention().bfloat16().eval(), (torch.randn(1, 10, 32).bfloat16(),)
