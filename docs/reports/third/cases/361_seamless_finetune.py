"""https://github.com/facebookresearch/seamless_communication/pull/399 (2024)

Fine-tuning SeamlessM4T with the finetune CLI: the run goes through but the model is unable to converge, the
loss does not come down.
"""
import torch
from torch import nn


class UnitYFinetuneWrapper(nn.Module):
    def __init__(self, dim=48, vocab=32):
        super().__init__()
        self.speech_encoder = nn.Sequential(nn.Linear(24, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU())
        self.final_proj = nn.Linear(dim, vocab)

    def forward(self, seqs):
        return self.final_proj(self.speech_encoder(seqs))


class UnitYFinetune(nn.Module):
    def __init__(self, model, learning_rate=2e-5, steps=100):
        super().__init__()
        self.model, self.steps = model, steps
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.0)

    def _train_step(self, seqs, targets):
        self.model.train()
        self.optimizer.zero_grad()
        tokens = self.model(seqs.to(next(self.model.parameters()).dtype))
        loss = nn.functional.cross_entropy(tokens.float(), targets, label_smoothing=0.2, reduction="sum")
        loss.backward()
        self.optimizer.step()
        return loss.detach() / len(targets)

    def forward(self, seqs, targets):
        return torch.stack([self._train_step(seqs, targets) for _ in range(self.steps)])


def load_unity_model(dtype):
    model = UnitYFinetuneWrapper()
    for p in model.parameters():
        p.data *= 4.0
    return model.to(dtype)


def factory():
    torch.manual_seed(0)
    model = load_unity_model(dtype=torch.float16)
    return UnitYFinetune(model), (torch.randn(64, 24), torch.randint(0, 32, (64,)))
