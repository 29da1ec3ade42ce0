"""https://github.com/TorchSim/torch-sim/pull/27 (2025)

unit_cell_fire with a MACE model stops in the first step, at atomic_power_per_batch.scatter_add_:
scatter(): Expected self.dtype to be equal to src.dtype.
"""
import torch
from torch import nn


class MaceModel(nn.Module):
    def __init__(self, dtype=torch.float64):
        super().__init__()
        self._dtype = dtype
        self.readout = nn.Sequential(nn.Linear(3, 16), nn.SiLU(), nn.Linear(16, 1)).to(dtype)

    def forward(self, positions):
        with torch.enable_grad():
            positions = positions.detach().to(self._dtype).requires_grad_()
            node_energy = self.readout(positions).squeeze(-1)
            forces = -torch.autograd.grad(node_energy.sum(), positions)[0]
        return {"node_energy": node_energy.detach(), "forces": forces}


class UnitCellFire(nn.Module):
    def __init__(self, model, dt_start=0.1, f_dec=0.5):
        super().__init__()
        self.model, self.dt_start, self.f_dec = model, dt_start, f_dec

    def fire_step(self, positions, velocity, forces, masses, batch, dt, dtype):
        atom_wise_dt = dt[batch].unsqueeze(-1)
        velocity = velocity + 0.5 * atom_wise_dt * forces / masses.unsqueeze(-1)
        positions = positions + atom_wise_dt * velocity
        forces = self.model(positions)["forces"]
        velocity = velocity + 0.5 * atom_wise_dt * forces / masses.unsqueeze(-1)
        atomic_power = (forces * velocity).sum(dim=1)
        atomic_power_per_batch = torch.zeros(dt.shape[0], dtype=dtype)
        atomic_power_per_batch.scatter_add_(dim=0, index=batch, src=atomic_power)
        uphill = atomic_power_per_batch <= 0
        dt = torch.where(uphill, dt * self.f_dec, dt)
        return positions, velocity.masked_fill(uphill[batch].unsqueeze(-1), 0.0), forces, dt

    def forward(self, positions, masses, batch):
        dtype, forces, velocity = positions.dtype, self.model(positions)["forces"], torch.zeros_like(positions)
        dt = torch.full((int(batch.max()) + 1,), self.dt_start, dtype=dtype)
        for _ in range(3):
            positions, velocity, forces, dt = self.fire_step(positions, velocity, forces, masses, batch, dt, dtype)
        return positions


def factory():
    torch.manual_seed(0)
    batch = torch.arange(3).repeat_interleave(4)
    return UnitCellFire(MaceModel()).eval(), (torch.randn(12, 3), 1 + torch.rand(12), batch)
