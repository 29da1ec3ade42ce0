"""https://github.com/Lorenzo-Mazza/VersatIL/pull/5, 2026.
OpenVLA scored 2 of 130 after 84k optimizer steps with model_dtype bf16-mixed; the lora_A
matrices were still at their random init."""
import torch
from torch import nn


class LoraLinear(nn.Module):
    def __init__(self, dim=32, r=8):
        super().__init__()
        self.base_layer = nn.Linear(dim, dim, bias=False)
        self.lora_A = nn.Linear(dim, r, bias=False)
        self.lora_B = nn.Linear(r, dim, bias=False)
        nn.init.uniform_(self.lora_A.weight, 0.2, 0.9)

    def forward(self, x):
        return self.base_layer(x) + self.lora_B(self.lora_A(x))


class GenerativeLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.vlm = LoraLinear()
        self.vlm.base_layer.requires_grad_(False)
        self._apply_model_dtype(torch.bfloat16)
        self.optimizer = torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=2.5e-5)

    def _apply_model_dtype(self, dtype):
        self.vlm.to(dtype)

    def forward(self, x, actions):
        for _ in range(5):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                pred = self.vlm(x)
            loss = (pred.float() - actions).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.detach()


def factory():
    torch.manual_seed(0)
    return GenerativeLM(), (torch.randn(16, 32), torch.randn(16, 32))
