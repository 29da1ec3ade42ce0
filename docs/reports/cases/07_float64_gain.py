# resemble-ai/chatterbox#499: voice prompt with numpy 2: "expected scalar type Double but found Float"
# answer: the loudness gain is an np.float64 and numpy 2 promotes the wave; make it a float before the product
import numpy as np
import torch
from torch import nn


class VoiceEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mel_filters", torch.rand(20, 129))
        self.rnn = nn.LSTM(20, 16, batch_first=True)

    @staticmethod
    def norm_loudness(wav, target=-27.0):
        loudness = 10 * np.log10(np.mean(wav.astype(np.float64) ** 2))  # a meter answers in float64
        gain_linear = 10.0 ** ((target - loudness) / 20.0)
        return wav * gain_linear

    def forward(self, prompt):
        wav = torch.from_numpy(self.norm_loudness(prompt.numpy()))
        frames = wav.unfold(-1, 256, 128) * torch.hann_window(256)
        mel = self.mel_filters @ torch.fft.rfft(frames).abs().square().transpose(0, 1)
        return self.rnn(mel.T[None])[0][:, -1]


def factory():
    return VoiceEncoder().eval(), (0.1 * torch.randn(4096),)
