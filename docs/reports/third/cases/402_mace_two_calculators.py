"""https://github.com/ACEsuit/mace/issues/877 (2025)
A float64 and a float32 calculator are made in one process; get_descriptors of the second
works, the first then crashes with mixed dtypes.
"""
import torch
from torch import nn


class AtomicEnergiesBlock(nn.Module):
    def __init__(self, atomic_energies):
        super().__init__()
        self.register_buffer("atomic_energies", torch.tensor(atomic_energies, dtype=torch.get_default_dtype()))

    def forward(self, x):
        return torch.matmul(x, self.atomic_energies)


class MACECalculator(nn.Module):
    def __init__(self, default_dtype):
        super().__init__()
        torch.set_default_dtype(getattr(torch, default_dtype))
        self.z_table = [1, 6, 8]
        self.atomic_energies_fn = AtomicEnergiesBlock([-13.6, -1029.5, -2042.0])
        self.descriptor = nn.Linear(3, 4)

    def get_descriptors(self, numbers):
        node_attrs = torch.zeros(len(numbers), len(self.z_table))
        for i, z in enumerate(numbers.tolist()):
            node_attrs[i, self.z_table.index(z)] = 1.0
        return self.descriptor(node_attrs), self.atomic_energies_fn(node_attrs)

    def forward(self, numbers):
        return self.get_descriptors(numbers)


class Comparison(nn.Module):
    def __init__(self):
        super().__init__()
        self.calc64 = MACECalculator(default_dtype="float64")
        self.calc32 = MACECalculator(default_dtype="float32")

    def forward(self, numbers):
        low = self.calc32(numbers)
        high = self.calc64(numbers)
        return low, high


def factory():
    torch.manual_seed(0)
    return Comparison(), (torch.tensor([8, 1, 1]),)
