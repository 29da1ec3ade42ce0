"""https://github.com/huggingface/diffusers/pull/13503 (2026)

sd-turbo in float16 with enable_freeu(s1=0.9, s2=0.2, b1=1.4, b2=1.6): on the GPU every step warns about an
experimental type, on the CPU the up block raises. In bfloat16 there is no such trouble.
"""
import torch
from torch import nn
from torch.fft import fftn, fftshift, ifftn, ifftshift


def fourier_filter(x_in, threshold, scale):
    x = x_in
    height, width = x.shape[-2:]
    if (width & (width - 1)) != 0 or (height & (height - 1)) != 0:
        x = x.to(dtype=torch.float32)
    elif x.dtype == torch.bfloat16:
        x = x.to(dtype=torch.float32)
    x_freq = fftshift(fftn(x, dim=(-2, -1)), dim=(-2, -1))
    mask = torch.ones(x_freq.shape, device=x.device)
    crow, ccol = height // 2, width // 2
    mask[..., crow - threshold:crow + threshold, ccol - threshold:ccol + threshold] = scale
    x_filtered = ifftn(ifftshift(x_freq * mask, dim=(-2, -1)), dim=(-2, -1)).real
    return x_filtered.to(dtype=x_in.dtype)


class UNet2DConditionModel(nn.Module):
    def __init__(self, channels=16, s1=0.9, b1=1.4):
        super().__init__()
        self.s1, self.b1 = s1, b1
        self.conv_in = nn.Conv2d(4, channels, 3, padding=1)
        self.mid = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.GroupNorm(4, 2 * channels)
        self.up = nn.Conv2d(2 * channels, 4, 3, padding=1)

    def forward(self, sample):
        res_hidden_states = self.conv_in(sample)
        hidden_states = self.mid(nn.functional.silu(res_hidden_states))
        backbone, rest = hidden_states.chunk(2, dim=1)
        res_hidden_states = fourier_filter(res_hidden_states, threshold=1, scale=self.s1)
        hidden_states = torch.cat([backbone * self.b1, rest, res_hidden_states], dim=1)
        return self.up(nn.functional.silu(self.norm(hidden_states)))


def factory():
    torch.manual_seed(0)
    unet = UNet2DConditionModel().to(torch.float16).eval()
    return unet, (torch.randn(1, 4, 16, 16, dtype=torch.float16),)
