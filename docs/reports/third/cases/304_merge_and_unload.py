"""https://github.com/huggingface/peft/issues/2502 (2025)

A LoRA reward model in bfloat16: after merge_and_unload() the scores are completely different from the scores
of the unmerged peft_model on the same inputs.
"""
import torch
import torch.nn.functional as F
from torch import nn


class LoraLinear(nn.Module):
    def __init__(self, features, r=8, lora_alpha=16):
        super().__init__()
        self.base_layer = nn.Linear(features, features, bias=False)
        self.lora_A = nn.Linear(features, r, bias=False)
        self.lora_B = nn.Linear(r, features, bias=False)
        w = torch.rand(features, features) * 0.4 + 0.55
        self.base_layer.weight.data = w * torch.randn(features, features).sign()
        nn.init.normal_(self.lora_A.weight, mean=0.01, std=0.001)
        nn.init.normal_(self.lora_B.weight, mean=0.009, std=0.0005)
        self.scaling = lora_alpha / r

    def get_delta_weight(self):
        return (self.lora_B.weight @ self.lora_A.weight) * self.scaling

    def merge_and_unload(self):
        return self.base_layer.weight + self.get_delta_weight()


class Qwen2ForSequenceClassification(nn.Module):
    def __init__(self, features=256):
        super().__init__()
        self.q_proj = LoraLinear(features)
        self.score = nn.Linear(features, 1, bias=False)
        self.score.weight.data.abs_()

    def forward(self, hidden_states):
        merged = self.q_proj.merge_and_unload()
        return self.score(F.linear(hidden_states, merged))


def factory():
    torch.manual_seed(42)
    x = torch.randn(16, 256) * 0.2 + 2.0
    return Qwen2ForSequenceClassification().to(torch.bfloat16).eval(), (x.to(torch.bfloat16),)
