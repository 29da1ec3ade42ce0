# tenstorrent/tt-forge-models#641: SpeechT5: "mat1 and mat2 must have the same dtype, but got Float and BFloat16"
# answer: decoder_input_values is torch.zeros() without a dtype; make it in the dtype that the model was loaded in
import torch
from torch import nn


class SpeechT5(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(40, 48)
        self.prenet = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 48))
        self.decoder = nn.MultiheadAttention(48, 4, batch_first=True)
        self.feat_out = nn.Linear(48, 20)

    def forward(self, input_ids, decoder_input_values):
        memory = self.encoder(input_ids)
        h = self.prenet(decoder_input_values)
        return self.feat_out(self.decoder(h, memory, memory, need_weights=False)[0])


class Loader(nn.Module):
    def __init__(self, dtype_override=None):
        super().__init__()
        self.dtype_override = dtype_override
        self.model = SpeechT5().to(dtype_override)

    def forward(self, input_ids):
        decoder_input_values = torch.zeros((1, 1, 20))
        return self.model(input_ids, decoder_input_values)


def factory():
    return Loader(dtype_override=torch.bfloat16).eval(), (torch.randint(0, 40, (1, 9)),)
