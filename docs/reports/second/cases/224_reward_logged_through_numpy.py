"""https://github.com/huggingface/trl/pull/1391 (2024)

DDPO fine-tuning in bf16: TypeError: Got unsupported ScalarType BFloat16, when the rewards are logged.
"""

import torch
from torch import nn


class Aesthetic(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 1))

    def forward(self, embeddings):
        return self.layers(embeddings)[:, 0]


class DDPOTrainer(nn.Module):
    def __init__(self):
        super().__init__()
        self.reward_model = Aesthetic()
        self.logged = {}

    def forward(self, embeddings):
        rewards = self.reward_model(embeddings)
        rewards_np = rewards.detach().cpu().numpy()
        self.logged = {"reward": rewards_np, "reward_mean": rewards_np.mean(), "reward_std": rewards_np.std()}
        return (rewards - float(rewards_np.mean())) / (float(rewards_np.std()) + 1e-8)


def factory():
    return DDPOTrainer().bfloat16().eval(), (torch.randn(6, 64).bfloat16(),)
