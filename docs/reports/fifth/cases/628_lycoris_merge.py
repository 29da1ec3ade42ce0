"""https://github.com/KohakuBlueleaf/LyCORIS/pull/267 (2025)

Adapters are merged with merge_to() for a request and taken out again with merge_to(-1). After the first revert the base
model's output differs a little, and with each further request it gets worse until the model has to be reloaded.
"""
import torch
from torch import nn


class LoConModule(nn.Module):
    def __init__(self, org_module, rank=4, alpha=16.0):
        super().__init__()
        self.org_module = [org_module]
        self.scale = alpha / rank
        self.lora_down = nn.Linear(org_module.in_features, rank, bias=False)
        self.lora_up = nn.Linear(rank, org_module.out_features, bias=False)
        self.to(org_module.weight.dtype)

    def get_diff_weight(self, multiplier=1.0):
        return self.lora_up.weight @ self.lora_down.weight * (self.scale * multiplier)

    @torch.no_grad()
    def merge_to(self, multiplier=1.0):
        weight = self.org_module[0].weight
        weight.copy_(weight + self.get_diff_weight(multiplier))


class ImageService(nn.Module):
    def __init__(self, dim=48, adapters=3):
        super().__init__()
        self.transformer = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim)).to(torch.bfloat16)
        linears = [m for m in self.transformer if isinstance(m, nn.Linear)]
        self.adapters = nn.ModuleList(nn.ModuleList(LoConModule(m) for m in linears) for _ in range(adapters))

    def forward(self, latents):
        for request in range(200):
            network = self.adapters[request % len(self.adapters)]
            for lora in network:
                lora.merge_to(1.0)
            self.transformer(latents)
            for lora in network:
                lora.merge_to(-1.0)
        return self.transformer(latents)


def factory():
    torch.manual_seed(0)
    return ImageService().eval(), (torch.randn(4, 48, dtype=torch.bfloat16),)
