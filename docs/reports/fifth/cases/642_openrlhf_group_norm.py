"""https://github.com/OpenRLHF/OpenRLHF/pull/1334 (2026)

Group-normalised advantages with a bfloat16 reward model: rewards 1, 1, 1 and 1.0078125 of one
prompt give 0, 0, 0 and 2.
"""
import torch
from torch import nn


class RewardModel(nn.Module):
    def __init__(self, hidden=8):
        super().__init__()
        self.score = nn.Linear(hidden, 1, bias=False)
        with torch.no_grad():
            self.score.weight.copy_(torch.tensor([[1.0, 0.5, 0.25, 2.0, -1.0, -0.5, 1.0, 0.125]]))

    def forward(self, hidden_states, attention_mask):
        eos = attention_mask.sum(-1) - 1
        last = hidden_states[torch.arange(hidden_states.shape[0]), eos]
        return self.score(last).squeeze(-1)


class ExperienceMaker(nn.Module):
    def __init__(self, n_samples_per_prompt=4):
        super().__init__()
        self.n_samples_per_prompt = n_samples_per_prompt
        self.reward_model = RewardModel().to(torch.bfloat16)

    def process_experiences(self, rewards):
        rewards = torch.cat(rewards).reshape(-1, self.n_samples_per_prompt)
        rewards = (rewards - rewards.mean(-1, keepdim=True)) / (rewards.std(-1, keepdim=True) + 1e-9)
        return rewards.reshape(-1)

    def forward(self, hidden_states, attention_mask, log_probs, old_log_probs):
        rewards = [self.reward_model(h, m) for h, m in zip(hidden_states.split(2), attention_mask.split(2))]
        advantages = self.process_experiences(rewards)
        ratio = (log_probs - old_log_probs).exp()
        policy_loss = -(ratio * advantages.unsqueeze(-1)).mean(-1)
        return advantages, policy_loss


def factory():
    torch.manual_seed(0)
    hidden_states = torch.zeros(8, 6, 8, dtype=torch.bfloat16)
    hidden_states[:, :, 0] = 1.0
    hidden_states[4:, :, 3] = 1.0
    hidden_states[3, :, 6] = 0.0078125
    hidden_states[5, :, 6] = 0.015625
    hidden_states[6, :, 6] = -0.015625
    attention_mask = torch.ones(8, 6, dtype=torch.long)
    log_probs = -torch.rand(8, 5)
    return ExperienceMaker().eval(), (hidden_states, attention_mask, log_probs, log_probs - 0.1 * torch.rand(8, 5))
