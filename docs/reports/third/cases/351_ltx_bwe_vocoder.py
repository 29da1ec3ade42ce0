"""https://github.com/vllm-project/vllm-omni/pull/6342 (2026)

LTX-2.5: the soundtrack differs from the reference, relative L2 0.33 and cosine 0.95 although the latents
agree; the picture is right.
"""
import torch
from torch import nn

GAIN = 2.0  # weights of the size a trained generator has


class AMPBlock(nn.Module):
    def __init__(self, ch, kernel, dilations=(1, 3, 5)):
        super().__init__()
        self.convs1 = nn.ModuleList([nn.Conv1d(ch, ch, kernel, dilation=d, padding=d * (kernel // 2)) for d in dilations])
        self.convs2 = nn.ModuleList([nn.Conv1d(ch, ch, kernel, padding=kernel // 2) for _ in dilations])
        self.alpha = nn.Parameter(torch.full((1, ch, 1), 2.0))

    def snake(self, x):
        return x + torch.sin(self.alpha * x).pow(2) / self.alpha

    def forward(self, x):
        for c1, c2 in zip(self.convs1, self.convs2):
            x = x + c2(self.snake(c1(self.snake(x))))
        return x


class VocoderWithBWE(nn.Module):
    def __init__(self, mels=20, ch=16):
        super().__init__()
        self.conv_pre = nn.Conv1d(mels, ch, 7, padding=3)
        self.ups = nn.ModuleList([nn.ConvTranspose1d(ch, ch, 8, stride=4, padding=2) for _ in range(2)])
        self.resblocks = nn.ModuleList([nn.Sequential(*[AMPBlock(ch, k) for k in (3, 7, 11)]) for _ in range(2)])
        self.conv_post = nn.Conv1d(ch, 2, 7, padding=3)

    @classmethod
    def from_config(cls, dtype):
        return cls().to(torch.bfloat16).to(dtype)  # the checkpoint is stored in bfloat16

    def forward(self, mel_spec):
        x = self.conv_pre(mel_spec.to(self.conv_pre.weight.dtype))
        for up, blocks in zip(self.ups, self.resblocks):
            x = blocks(up(x))
        return torch.tanh(self.conv_post(x) * 0.2).float()


def factory():
    torch.manual_seed(0)
    vocoder = VocoderWithBWE.from_config(dtype=torch.bfloat16).eval()
    for name, p in vocoder.named_parameters():
        p.requires_grad_(False)
        if "convs" in name:
            p.mul_(GAIN)
    return vocoder, (torch.randn(1, 20, 40) * 2,)
