# WhatDreamsCost/WhatDreamsCost-ComfyUI#74: "Input type (float) and bias type (c10::BFloat16) should be the same"
# answer: waveform_to_mel leaves the audio in float32; give its result the waveform's dtype back before the encoder
import torch
from torch import nn


class Preprocessor(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("filters", torch.rand(20, 129), persistent=False)

    def waveform_to_mel(self, waveform):
        frames = waveform.float().unfold(-1, 256, 128) * torch.hann_window(256)
        power = torch.fft.rfft(frames).abs().square()
        return (power @ self.filters.float().T).clamp_min(1e-5).log().transpose(1, 2)


class AudioVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.preprocessor = Preprocessor()
        self.encoder = nn.Conv1d(20, 8, 3, padding=1)

    def forward(self, waveform):
        mel = self.preprocessor.waveform_to_mel(waveform)
        return self.encoder(mel)


def factory():
    return AudioVAE().bfloat16().eval(), (torch.randn(1, 2048).bfloat16(),)
