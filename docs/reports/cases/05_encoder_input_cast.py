# modelscope/FunASR#2978: generate(bf16=True): "mat1 and mat2 must have the same dtype, but got BFloat16 and Float"
# answer: drop the cast of the audio encoder's input; the encoder stays float32 and only the decoder runs in bfloat16
import torch
from torch import nn


class AudioEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(40, 32), nn.Linear(32, 48)

    def forward(self, fbank):
        return self.out(torch.relu(self.inp(fbank)))


class FunAsr(nn.Module):
    def __init__(self):
        super().__init__()
        self.audio_encoder = AudioEncoder()  # some of its operations exist in float32 only
        self.llm_embed = nn.Embedding(30, 48)
        self.llm = nn.Linear(48, 30)
        self.llm_embed.bfloat16()
        self.llm.bfloat16()

    def forward(self, fbank, input_ids, llm_dtype=torch.bfloat16):
        speech = fbank.to(llm_dtype)
        encoded = self.audio_encoder(speech)
        inputs_embeds = self.llm_embed(input_ids)
        inputs_embeds[:, 2 : 2 + encoded.shape[1]] = encoded
        return self.llm(inputs_embeds)


def factory():
    return FunAsr().eval(), (torch.randn(1, 6, 40), torch.randint(0, 30, (1, 12)))
