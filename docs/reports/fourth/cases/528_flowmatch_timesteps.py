"""https://github.com/huggingface/diffusers/pull/14011 (2026)

FlowMatchEulerDiscreteScheduler with shift=3: set_timesteps(num_inference_steps=2) and set_timesteps(timesteps=[...])
with the very values of that schedule give the same sigmas, but the samples differ and look worse with the
explicit list. Is it the rounding of the timesteps?
"""
import torch
from torch import nn


class FlowMatchEulerDiscreteScheduler:
    def __init__(self, num_train_timesteps=1000, shift=3.0):
        self.num_train_timesteps, self.shift = num_train_timesteps, shift
        self.timesteps, self.sigmas = None, None

    def set_timesteps(self, num_inference_steps, timesteps=None):
        is_timesteps_provided = timesteps is not None
        if timesteps is None:
            timesteps = torch.linspace(self.num_train_timesteps, 1.0, num_inference_steps)
        sigmas = timesteps / self.num_train_timesteps
        sigmas = self.shift * sigmas / (1 + (self.shift - 1) * sigmas)
        if not is_timesteps_provided:
            timesteps = sigmas * self.num_train_timesteps
        self.timesteps = timesteps
        self.sigmas = torch.cat([sigmas, torch.zeros(1)])


class SD3Pipeline(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.scheduler = FlowMatchEulerDiscreteScheduler()
        self.time_mlp = nn.Sequential(nn.Linear(1, 32), nn.SiLU(), nn.Linear(32, dim))
        self.net = nn.Linear(dim, dim)

    def forward(self, latents, timesteps):
        self.scheduler.set_timesteps(len(timesteps), timesteps)
        for i, t in enumerate(self.scheduler.timesteps):
            velocity = torch.tanh(self.net(latents) + self.time_mlp(t.view(1, 1) / 1000))
            latents = latents + (self.scheduler.sigmas[i + 1] - self.scheduler.sigmas[i]) * velocity
        return latents


def factory():
    torch.manual_seed(0)
    return SD3Pipeline().eval(), (torch.randn(1, 16), torch.linspace(1000.0, 1.0, 4))
