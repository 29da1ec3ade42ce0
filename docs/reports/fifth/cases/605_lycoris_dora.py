"""https://github.com/KohakuBlueleaf/LyCORIS/pull/166 (2024)

LoCon training with dora_wd=True: the loss is nan from the first step on. The same run without dora_wd
trains.
"""
import torch
from torch import nn
import torch.nn.functional as F


class LoConModule(nn.Module):
    def __init__(self, org_module, lora_dim=4, alpha=1.0):
        super().__init__()
        self.org_module = org_module.requires_grad_(False)
        out_dim, in_dim = org_module.weight.shape
        self.lora_down = nn.Linear(in_dim, lora_dim, bias=False)
        self.lora_up = nn.Linear(lora_dim, out_dim, bias=False)
        nn.init.zeros_(self.lora_up.weight)
        self.scale = alpha / lora_dim
        self.dora_scale = nn.Parameter(org_module.weight.norm(dim=0, keepdim=True).float())

    def apply_weight_decompose(self, weight):
        weight = weight.to(self.dora_scale.dtype)
        weight_norm = weight.norm(dim=0, keepdim=True)
        return weight * (self.dora_scale / weight_norm)

    def forward(self, x):
        diff = self.lora_up.weight @ self.lora_down.weight * self.scale
        weight = self.apply_weight_decompose(self.org_module.weight + diff)
        return F.linear(x, weight.to(x.dtype), self.org_module.bias)


class Trainer(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        to_k, to_out = nn.Linear(dim, 32, bias=False), nn.Linear(32, 16)
        to_k.weight.data[:, 40:] = 0
        self.unet = nn.Sequential(LoConModule(to_k.half()), nn.SiLU(), LoConModule(to_out.half()))

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def forward(self, context, noise):
        loss = F.mse_loss(self.unet(context).float(), noise)
        loss.backward()
        return loss.detach(), self.unet[2].lora_up.weight.grad


def factory():
    torch.manual_seed(0)
    return Trainer(), (torch.randn(4, 10, 48), torch.randn(4, 10, 16))
