"""https://github.com/torchmd/torchmd-net/pull/275 (2024)

Energies of the ANI datasets come out of the loader with steps of several meV between
conformers of one molecule, while the stored values are smooth.
"""
import numpy as np
import torch
from torch import nn


class ANIBase(nn.Module):
    HARTREE_TO_EV = 27.211386246
    ELEMENT_ENERGIES = {1: -0.500607632585, 6: -37.8302333826, 7: -54.5680045287, 8: -75.0362229210}

    def __init__(self, z, idx):
        super().__init__()
        self.z_mm, self.idx_mm = z, idx

    def compute_reference_energy(self, atomic_numbers):
        return sum(self.ELEMENT_ENERGIES[int(z)] for z in atomic_numbers) * self.HARTREE_TO_EV

    def get(self, y_mm, idx):
        z = torch.tensor(self.z_mm[self.idx_mm[idx]:self.idx_mm[idx + 1]], dtype=torch.long)
        y = torch.tensor(y_mm[idx], dtype=torch.float32).view(1, 1)
        y -= self.compute_reference_energy(z)
        return z, y

    def forward(self, energies):
        y_mm = energies.detach().cpu().numpy()
        return torch.cat([self.get(y_mm, idx)[1] for idx in range(len(y_mm))])


def factory():
    rng = np.random.default_rng(0)
    molecule = np.array([6] * 24 + [7] * 6 + [8] * 8 + [1] * 30, dtype=np.int8)
    conformers = 12
    dataset = ANIBase(np.tile(molecule, conformers), np.arange(conformers + 1) * len(molecule))
    formation = -9.0 + 0.01 * np.arange(conformers) + 0.002 * rng.standard_normal(conformers)
    total = dataset.compute_reference_energy(molecule) + formation
    return dataset, (torch.from_numpy(total),)
