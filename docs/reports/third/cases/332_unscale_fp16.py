"""https://github.com/oobabooga/textgen/pull/5268 (2024)

Training a LoRA in the web UI on a V100 (no bf16) stops at the first optimizer step with
ValueError: Attempting to unscale FP16 gradients.
"""
import torch
from torch import nn


class LoraLinear(nn.Module):
    def __init__(self, base_layer, r=4):
        super().__init__()
        self.base_layer = base_layer.requires_grad_(False)
        self.lora_A = nn.Linear(base_layer.in_features, r, bias=False)
        self.lora_B = nn.Linear(r, base_layer.out_features, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.lora_B(self.lora_A(x))


class LoraTraining(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(LoraLinear(nn.Linear(16, 32)), nn.GELU(), LoraLinear(nn.Linear(32, 16))).half()
        self.trainable = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trainable, lr=3e-4)
        self.scaler = torch.amp.GradScaler("cpu")

    def forward(self, x, y):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = (self.model(x).float() - y).pow(2).mean()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.trainable, 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss


def factory():
    torch.manual_seed(0)
    return LoraTraining(), (torch.randn(8, 16).half(), torch.randn(8, 16))
