# huggingface/diffusers#11749: looking up timestep 254 of the flow-matching scheduler finds nothing: an IndexError
# answer: not a dtype fault: arithmetic left 254.00001527 and == matches no row; look up the nearest, or round them
import torch
from torch import nn


class Scheduler(nn.Module):
    def __init__(self, num_train_timesteps=1000):
        super().__init__()
        sigmas = torch.linspace(num_train_timesteps, 1, num_train_timesteps) / num_train_timesteps
        self.register_buffer("sigmas", sigmas)
        self.register_buffer("timesteps", sigmas * num_train_timesteps)

    def index_for_timestep(self, timestep):
        return (self.timesteps == timestep).nonzero()[0].item()

    def scale_noise(self, sample, timestep, noise):
        sigma = self.sigmas[self.index_for_timestep(timestep)]
        return sigma * noise + (1 - sigma) * sample


class Trainer(nn.Module):
    def __init__(self):
        super().__init__()
        self.scheduler = Scheduler()
        self.net = nn.Linear(16, 16)

    def forward(self, sample, noise, timestep):
        return self.net(self.scheduler.scale_noise(sample, timestep, noise))


def factory():
    return Trainer().eval(), (torch.randn(4, 16), torch.randn(4, 16), torch.tensor(254))
