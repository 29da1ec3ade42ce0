# wildminder/ComfyUI-VibeVoice#6: the node after the voice fails: data must be float32 ... int16 or int32, not float16
# answer: convert the finished waveform, output_waveform.to(torch.float32), before it leaves for numpy and the writer
import io

import soundfile
import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose1d(16, 8, 8, stride=4, padding=2)
        self.out = nn.Conv1d(8, 1, 7, padding=3)

    def forward(self, latents):
        return torch.tanh(self.out(torch.relu(self.up(latents))))


class VibeVoice(nn.Module):
    def __init__(self):
        super().__init__()
        self.decoder = Decoder()

    def forward(self, latents):
        output_waveform = self.decoder(latents)[0, 0].detach().cpu()
        file = io.BytesIO()
        soundfile.write(file, output_waveform.numpy(), 24000, format="WAV", subtype="PCM_16")
        return torch.tensor(len(file.getvalue()))


def factory():
    return VibeVoice().half().eval(), (torch.randn(1, 16, 50).half(),)
