"""https://github.com/hpcaitech/Open-Sora/pull/523 (2024)
In fp16 the rectified-flow scheduler gives NaN timesteps for a 720p video and the sample
is NaN from the first step; small sizes work.
"""
import torch
from torch import nn


def timestep_transform(t, model_kwargs, base_resolution=512 * 512, base_num_frames=1, scale=1.0, num_timesteps=1000):
    t = t / num_timesteps
    resolution = model_kwargs["height"] * model_kwargs["width"]
    ratio_space = (resolution / base_resolution).sqrt()
    num_frames = model_kwargs["num_frames"] // 17 * 5
    ratio_time = (num_frames / base_num_frames).sqrt()
    ratio = ratio_space * ratio_time * scale
    new_t = ratio * t / (1 + (ratio - 1) * t)
    return new_t * num_timesteps


class RFLOW(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Linear(8, 8)

    def forward(self, z, t, height, width, num_frames):
        kwargs = dict(height=height, width=width, num_frames=num_frames)
        t = timestep_transform(t, kwargs)
        pred = self.model(z * (1 + t.view(-1, 1) / 1000).to(z.dtype))
        return z + pred


def factory():
    torch.manual_seed(0)
    one = torch.ones(2).half()
    return RFLOW().half(), (torch.randn(2, 8).half(), 400 * one, 720 * one, 1280 * one, 51 * one)
