# QwenLM/Qwen3-TTS#355: --dtype float16: "probability tensor contains either `inf`, `nan` or element < 0"
# answer: logits leave float16's range once they are scaled for sampling; return them as float32: logits.float()
import torch
from torch import nn


class CodePredictor(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.lm_head = nn.Linear(64, 80, bias=False)
        with torch.no_grad():
            self.lm_head.weight.mul_(20000)  # a confident head: logits of some 40,000, which float16 still holds

    def forward(self, hidden):
        return self.lm_head(self.norm(hidden))


class Talker(nn.Module):
    def __init__(self):
        super().__init__()
        self.code_predictor = CodePredictor()

    def forward(self, hidden, temperature=0.4):
        logits = self.code_predictor(hidden)[:, -1]
        scores = logits / temperature
        return torch.multinomial(scores.softmax(-1), 1)


def factory():
    return Talker().half().eval(), (torch.randn(2, 5, 64).half(),)
