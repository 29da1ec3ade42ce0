"""https://github.com/huggingface/trl/pull/4303 (2025)

GRPO: the token probabilities of the trainer and of the generator differ a little on the same sequence with
the same weights; the importance ratio is not 1 where it should be and training reaches a lower reward.
"""
import torch
import torch.nn.functional as F
from torch import nn


class PolicyModel(nn.Module):
    def __init__(self, vocab=1024, dim=64):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, dim)
        self.norm = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        nn.init.normal_(self.lm_head.weight, std=0.6)

    def forward(self, input_ids):
        hidden_states = self.norm(self.embed_tokens(input_ids))
        return self.lm_head(hidden_states)


class GRPOTrainer(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = PolicyModel().to(torch.bfloat16)

    def forward(self, input_ids):
        logits = self.model(input_ids)[:, :-1]
        return F.log_softmax(logits.float(), dim=-1).gather(-1, input_ids[:, 1:, None]).squeeze(-1)


def factory():
    torch.manual_seed(0)
    return GRPOTrainer().eval(), (torch.randint(0, 1024, (4, 32)),)
