# modelscope/FunASR#3597: dtype="fp16": every transcript is a long row of "!", which is token 0; no error
# answer: the text decoder overflows in float16, not the audio path; run the decoder in bfloat16, the encoder may stay
import torch
from torch import nn


class AudioEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.norm = nn.Linear(20, 32), nn.LayerNorm(32)

    def forward(self, fbank):
        return self.norm(torch.relu(self.inp(fbank)))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(90, 32)
        self.gate, self.up, self.down = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 32)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 90)
        with torch.no_grad():
            for layer in (self.gate, self.up):
                layer.weight.mul_(400)  # products of gate and up beyond 65504, as Qwen3 has them

    def step(self, h):
        h = h + self.down(torch.relu(self.gate(h)) * self.up(h))
        return self.head(self.norm(h))[:, -1]


class FunAsr(nn.Module):
    def __init__(self):
        super().__init__()
        self.audio, self.decoder = AudioEncoder(), Decoder()

    def forward(self, fbank, steps=5):
        h, tokens = self.audio(fbank), []
        for _ in range(steps):
            tokens.append(self.decoder.step(h).argmax(-1))
            h = torch.cat([h, self.decoder.embed(tokens[-1])[:, None]], dim=1)
        return torch.stack(tokens, 1)


def factory():
    return FunAsr().half().eval(), (torch.randn(2, 6, 20).half(),)
