"""https://github.com/OpenBMB/VoxCPM/pull/263 (2026)

VoxCPM2 with device="mps": the checkpoint's bfloat16 is used, the speech is audibly glitched and the badcase
detector retries until its budget is gone; with float32 the same text is clean.
"""
import torch
from torch import nn

CONFIG = {"dtype": "bfloat16", "device": "mps"}


def pick_runtime_dtype(device, configured_dtype):
    return getattr(torch, configured_dtype)


class UnifiedCFM(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(2 * dim, 4 * dim), nn.SiLU(), nn.Linear(4 * dim, dim))

    def estimator(self, x, mu):
        return self.mlp(torch.cat([x, mu], -1))

    def solve_euler(self, x, mu, n_timesteps=10, cfg_value=2.0):
        for _ in range(n_timesteps):
            cond, uncond = self.estimator(x, mu), self.estimator(x, torch.zeros_like(mu))
            x = x + (uncond + cfg_value * (cond - uncond)) / n_timesteps
        return x


class VoxCPM2Model(nn.Module):
    def __init__(self, config, dim=32):
        super().__init__()
        self.dtype = pick_runtime_dtype(config["device"], config["dtype"])
        self.residual_lm, self.feat_decoder = nn.GRUCell(dim, dim), UnifiedCFM(dim)
        self.to(torch.bfloat16).to(self.dtype)

    def forward(self, noise):
        noise = noise.to(self.dtype)
        hidden = torch.zeros(1, noise.shape[-1], dtype=self.dtype)
        patches, patch = [], torch.zeros_like(hidden)
        for z in noise:
            hidden = self.residual_lm(patch, hidden)
            patch = self.feat_decoder.solve_euler(z[None], 4.0 * hidden)
            patches.append(patch)
        return torch.cat(patches).float()


def factory():
    torch.manual_seed(0)
    model = VoxCPM2Model(CONFIG).eval()
    for name, p in model.named_parameters():
        p.requires_grad_(False)
        if "mlp" in name:
            p.mul_(2.5)
    return model, (torch.randn(40, 32),)
