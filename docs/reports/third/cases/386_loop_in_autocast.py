"""https://github.com/pytorch/pytorch/issues/120376 (2024)
Float32 master weights with autocast to bfloat16 give a far worse loss curve than pure
bfloat16 with stochastic rounding; in this reduction the loss does not move at all.
"""
import torch
from torch import nn


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(16, 32)
        self.fc2 = nn.Linear(32, 4)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


class Trainer(nn.Module):
    def __init__(self, steps=20):
        super().__init__()
        self.model = MLP()
        self.ce = nn.CrossEntropyLoss()
        self.steps = steps

    def forward(self, x, y):
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for _ in range(self.steps):
                logits = self.model(x)
                loss = self.ce(logits, y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return loss


def factory():
    torch.manual_seed(0)
    x = torch.randn(64, 16)
    return Trainer(), (x, x[:, :4].argmax(-1))
