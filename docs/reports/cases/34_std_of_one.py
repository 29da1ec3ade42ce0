# ruc-datalab/DeepAnalyze#116: GRPO in bfloat16: policy loss, entropy and gradients are NaN on every batch
# answer: not a dtype fault: std() of one generation per prompt divides by zero; unbiased=False, or skip scale_rewards
import torch
from torch import nn


class GrpoLoss(nn.Module):
    def __init__(self, num_generations=1):
        super().__init__()
        self.num_generations = num_generations
        self.policy = nn.Linear(32, 50)

    def advantages(self, rewards):
        grouped = rewards.view(-1, self.num_generations)
        mean, std = grouped.mean(dim=1), grouped.std(dim=1)
        mean, std = (t.repeat_interleave(self.num_generations) for t in (mean, std))
        return (rewards - mean) / (std + 1e-4)

    def forward(self, hidden, tokens, rewards):
        logps = self.policy(hidden).float().log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
        ratio = (logps - logps.detach()).exp()
        return -(ratio * self.advantages(rewards)[:, None]).mean(-1)


def factory():
    inputs = (torch.randn(4, 7, 32).bfloat16(), torch.randint(0, 50, (4, 7)), torch.rand(4))
    return GrpoLoss().bfloat16().eval(), inputs
