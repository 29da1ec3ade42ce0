"""https://github.com/modelscope/DiffSynth-Studio/pull/1427 (2026)

Under DeepSpeed, which casts the whole model to bf16, LTX-2's audio VAE stops in the Fourier transform.
"""
import torch
from torch import nn


class MelSpectrogram(nn.Module):
    def __init__(self, n_fft=256, hop=80, n_mels=32):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft))
        self.register_buffer("fb", torch.rand(n_fft // 2 + 1, n_mels) / n_fft)

    def forward(self, waveform):
        frames = waveform.unfold(-1, self.n_fft, self.hop) * self.window
        return torch.fft.rfft(frames).abs() @ self.fb


class AudioProcessor(nn.Module):
    def __init__(self):
        super().__init__()
        self.mel_transform = MelSpectrogram()

    def waveform_to_mel(self, waveform):
        mel = self.mel_transform(waveform)
        mel = torch.log(torch.clamp(mel, min=1e-5))
        return mel.transpose(1, 2)


class AudioVae(nn.Module):
    def __init__(self):
        super().__init__()
        self.processor = AudioProcessor()
        self.encoder = nn.Sequential(nn.Conv1d(32, 48, 3, padding=1), nn.SiLU(), nn.Conv1d(48, 8, 3, padding=1))

    def forward(self, waveform):
        return self.encoder(self.processor.waveform_to_mel(waveform))


def factory():
    return AudioVae().bfloat16().eval(), (0.1 * torch.randn(2, 4096).bfloat16(),)
