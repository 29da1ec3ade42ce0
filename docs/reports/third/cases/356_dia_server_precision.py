"""https://github.com/devnen/Dia-TTS-Server/issues/10 (2025)

Dia-TTS-Server with the full-precision model file selected: the log still reports bf16 and the generated
speech is completely scrambled.
"""
import torch
from torch import nn

MODEL_FILE = "dia-v0_1.safetensors"


def get_compute_dtype(model_file, supports_bf16=True):
    return torch.bfloat16 if supports_bf16 else torch.float16


class DiaModel(nn.Module):
    def __init__(self, dim=48, vocab=256, layers=6):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.cells = nn.ModuleList([nn.Linear(2 * dim, dim) for _ in range(layers)])
        self.logits_dense = nn.Linear(dim, vocab)

    def step(self, token, states):
        x = self.embed(token)
        new = []
        for cell, state in zip(self.cells, states):
            state = torch.tanh(3.0 * cell(torch.cat([x, state], -1)))
            x = x + state
            new.append(state)
        return self.logits_dense(x), new


class DiaEngine(nn.Module):
    def __init__(self, model, model_file):
        super().__init__()
        self.model, self.compute_dtype = model, get_compute_dtype(model_file)
        self.model.to(self.compute_dtype)

    def forward(self, token, frames=60):
        states = [torch.zeros(1, 48, dtype=self.compute_dtype) for _ in self.model.cells]
        out = []
        for _ in range(frames):
            logits, states = self.model.step(token, states)
            token = logits.argmax(-1)
            out.append(logits)
        return torch.cat(out)


def factory():
    torch.manual_seed(0)
    engine = DiaEngine(DiaModel().eval(), MODEL_FILE)
    for p in engine.parameters():
        p.requires_grad_(False)
    return engine, (torch.tensor([5]),)
