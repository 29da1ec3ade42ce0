"""https://github.com/pytorch/pytorch/issues/147437 (2025)
The new feature network in front of a frozen BLIP-2 Q-former is trained in float16; after
the first optimizer.step() all its parameters are NaN, though loss and gradients are finite.
"""
import torch
from torch import nn


class FeatureNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(16, 16)

    def forward(self, x):
        return self.proj(x)


class TrainStep(nn.Module):
    def __init__(self):
        super().__init__()
        self.feature_net = FeatureNet()
        self.q_former = nn.Linear(16, 8).requires_grad_(False)

    def forward(self, x):
        optimizer = torch.optim.Adam(self.feature_net.parameters(), lr=1e-4)
        loss = (self.q_former(torch.relu(self.feature_net(x))) * 1e-3).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach(), self.feature_net.proj.weight


def factory():
    torch.manual_seed(0)
    return TrainStep().half(), (torch.randn(4, 16).half(),)
