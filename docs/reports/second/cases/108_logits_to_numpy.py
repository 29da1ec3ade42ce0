"""https://github.com/InternLM/lmdeploy/pull/2472 (2024)

pipe.get_logits of a bfloat16 model: TypeError: Got unsupported ScalarType BFloat16
"""
import torch
from torch import nn


class Internlm(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(60, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.output = nn.Linear(32, 60, bias=False)

    def forward(self, tokens):
        return self.output(self.layer(self.embed(tokens)))


class Pipeline(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = Internlm()

    def get_logits(self, input_ids):
        logits = []
        for tokens in input_ids:
            _logits = self.model(tokens[None])[0]
            _logits = _logits.cpu()
            logits.append(_logits.numpy())
        return logits

    def forward(self, input_ids):
        return torch.stack([torch.from_numpy(logits) for logits in self.get_logits(input_ids)])


def factory():
    return Pipeline().bfloat16().eval(), (torch.randint(0, 60, (2, 9)),)
