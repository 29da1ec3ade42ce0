"""https://github.com/dkackman/diffusers-workflow/issues/223 (2026)

generate_speech with a SpeechT5 pipeline in fp16 and a voice given as a recording: the x-vector has the right shape
now, but generate dies with mat1 and mat2 must have the same dtype, but got Float and Half.
"""
import torch
from torch import nn


class XVectorEncoder(nn.Module):
    def __init__(self, bands=24, dim=32):
        super().__init__()
        self.tdnn = nn.Sequential(nn.Conv1d(bands, 48, 5), nn.ReLU(), nn.Conv1d(48, 48, 3), nn.ReLU())
        self.embedding = nn.Linear(96, dim)

    def encode_batch(self, fbank):
        h = self.tdnn(fbank)
        return self.embedding(torch.cat([h.mean(-1), h.std(-1)], dim=-1))


class SpeechT5SpeechDecoderPrenet(nn.Module):
    def __init__(self, mel=16, hidden=48, xvector_dim=32):
        super().__init__()
        self.final_layer = nn.Linear(mel, hidden)
        self.speaker_embeds_layer = nn.Linear(hidden + xvector_dim, hidden)

    def forward(self, input_values, speaker_embeddings):
        inputs_embeds = self.final_layer(input_values)
        speaker_embeddings = nn.functional.normalize(speaker_embeddings)
        speaker_embeddings = speaker_embeddings.unsqueeze(1).expand(-1, inputs_embeds.size(1), -1)
        inputs_embeds = torch.cat([inputs_embeds, speaker_embeddings], dim=-1)
        return nn.functional.relu(self.speaker_embeds_layer(inputs_embeds))


class GenerateSpeech(nn.Module):
    def __init__(self, torch_dtype=torch.float16):
        super().__init__()
        self.speaker_model = XVectorEncoder()
        self.prenet = SpeechT5SpeechDecoderPrenet().to(torch_dtype)
        self.feat_out = nn.Linear(48, 16).to(torch_dtype)

    def forward(self, reference):
        xvector = self.speaker_model.encode_batch(reference).reshape(1, -1)
        spectrum = torch.zeros(1, 1, 16, dtype=self.feat_out.weight.dtype)
        for _ in range(6):
            spectrum = torch.cat([spectrum, self.feat_out(self.prenet(spectrum, xvector)[:, -1:])], dim=1)
        return spectrum[:, 1:]


def factory():
    torch.manual_seed(0)
    return GenerateSpeech().eval(), (torch.randn(1, 24, 60),)
