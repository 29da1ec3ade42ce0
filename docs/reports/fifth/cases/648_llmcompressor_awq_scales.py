"""https://github.com/vllm-project/llm-compressor/pull/1788 (2025)

AWQ on a bfloat16 checkpoint: the scales of the grid search come out as NaN for every ratio above 0.
"""
import torch
from torch import nn


def pseudo_quantize(w, bits=4, group=16):
    g = w.reshape(-1, group)
    scale = g.abs().amax(-1, keepdim=True).clamp(min=1e-5) / (2 ** (bits - 1) - 1)
    return ((g / scale).round() * scale).reshape(w.shape)


class AWQModifier(nn.Module):
    def __init__(self, dim=32, n_grid=8):
        super().__init__()
        self.n_grid = n_grid
        self.smooth_layer = nn.LayerNorm(dim)
        self.balance_layers = nn.ModuleList(nn.Linear(dim, dim, bias=False) for _ in range(3))

    def accumulate_mean(self, batches):
        total, count = 0.0, 0
        for inp in batches:
            inp = inp.reshape(-1, inp.shape[-1])
            total = total + inp.float().sum(dim=0)
            count += inp.shape[0]
        return total / count

    def compute_best_scale(self, x, x_mean, w_mean):
        weight = torch.cat([layer.weight for layer in self.balance_layers]).float()
        reference, best, errors = x @ weight.T, None, []
        for grid_idx in range(self.n_grid):
            ratio = grid_idx / self.n_grid
            scales = (x_mean.pow(ratio) / (w_mean.pow(1 - ratio) + 1e-4)).clamp(min=1e-4)
            scales = scales / (scales.max() * scales.min()).sqrt()
            errors.append((x @ (pseudo_quantize(weight * scales) / scales).T - reference).square().mean())
            if best is None or errors[-1] < min(errors[:-1]):
                best = scales
        return best, torch.stack(errors)

    def forward(self, hidden_states):
        acts = [self.smooth_layer(h) for h in hidden_states]
        x_mean = self.accumulate_mean(acts)
        weight = torch.cat([layer.weight for layer in self.balance_layers]).float()
        w_mean = (weight.abs() / weight.abs().amax(1, keepdim=True)).mean(0)
        return self.compute_best_scale(torch.cat(acts).float(), x_mean, w_mean)


def factory():
    torch.manual_seed(0)
    return AWQModifier().to(torch.bfloat16).eval(), (torch.randn(4, 64, 32, dtype=torch.bfloat16),)
