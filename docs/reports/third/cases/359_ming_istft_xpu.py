"""https://github.com/vllm-project/vllm-omni/pull/7538 (2026)

Ming-omni-tts on an Intel Arc (XPU): the language model runs, then the vocoder's ISTFT fails with an
unsupported-dtype error; on CUDA the same half-precision checkpoint works.
"""
import torch
from torch import nn


class ISTFT(nn.Module):
    def __init__(self, n_fft=32, hop_length=8):
        super().__init__()
        self.n_fft, self.hop_length = n_fft, hop_length
        self.register_buffer("window", torch.hann_window(n_fft))

    def forward(self, spec):
        ifft = torch.fft.irfft(spec, self.n_fft, dim=1, norm="backward")
        ifft = ifft * self.window[None, :, None]
        size = (spec.shape[-1] - 1) * self.hop_length + self.n_fft
        fold = dict(output_size=(1, size), kernel_size=(1, self.n_fft), stride=(1, self.hop_length))
        wave = nn.functional.fold(ifft, **fold)[:, 0, 0]
        envelope = nn.functional.fold((self.window ** 2)[None, :, None].expand(1, -1, spec.shape[-1]), **fold)[:, 0, 0]
        pad = self.n_fft // 2
        return wave[:, pad:-pad] / envelope[:, pad:-pad]


class ISTFTHead(nn.Module):
    def __init__(self, dim=24, n_fft=32):
        super().__init__()
        self.out, self.istft = nn.Linear(dim, n_fft + 2), ISTFT(n_fft)

    def forward(self, x):
        mag, p = self.out(x).transpose(1, 2).chunk(2, dim=1)
        mag = torch.exp(mag).clip(max=1e2)
        x, y = torch.cos(p), torch.sin(p)
        S = mag * (x + 1j * y)
        return self.istft(S)


def factory():
    torch.manual_seed(0)
    head = ISTFTHead().half().eval()
    for p in head.parameters():
        p.requires_grad_(False)
    return head, (torch.randn(1, 20, 24).half(),)
