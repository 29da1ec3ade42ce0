"""https://github.com/facebookresearch/fairchem/issues/1317 (2025)

predict() on a UMA checkpoint returns the energy in float64 but forces and stress in float32.
Should the energy not be float32 as well?
"""
import torch
from torch import nn


class UMABackbone(nn.Module):
    def __init__(self, num_elements=20, width=32):
        super().__init__()
        self.sphere_embedding = nn.Embedding(num_elements, width)
        self.energy_block = nn.Sequential(nn.Linear(width + 1, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, pos, atomic_numbers, batch):
        with torch.enable_grad():
            pos = pos.detach().requires_grad_()
            r = pos.square().sum(-1, keepdim=True)
            node_energy = self.energy_block(torch.cat([self.sphere_embedding(atomic_numbers), r], -1))
            energy = node_energy.new_zeros(int(batch.max()) + 1).index_add(0, batch, node_energy.squeeze(-1))
            forces = -torch.autograd.grad(energy.sum(), pos)[0]
        return {"energy": energy.detach(), "forces": forces}


class MLIPPredictUnit(nn.Module):
    tasks = {"energy": torch.float64, "forces": torch.float32}

    def __init__(self, num_elements=20):
        super().__init__()
        self.model = UMABackbone(num_elements)
        refs = -torch.linspace(13.6, 4000.0, num_elements, dtype=torch.float64)
        self.register_buffer("element_references", refs)

    def predict(self, pos, atomic_numbers, batch):
        output = self.model(pos, atomic_numbers, batch)
        preds = {task: output[task].to(dtype) for task, dtype in self.tasks.items()}
        preds["energy"] = preds["energy"].index_add(0, batch, self.element_references[atomic_numbers])
        return preds

    def forward(self, pos, atomic_numbers, batch):
        preds = self.predict(pos, atomic_numbers, batch)
        return preds["energy"], preds["forces"]


def factory():
    torch.manual_seed(0)
    batch = torch.arange(2).repeat_interleave(9)
    return MLIPPredictUnit().eval(), (torch.randn(18, 3), torch.randint(1, 20, (18,)), batch)
