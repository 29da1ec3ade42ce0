"""https://github.com/vladmandic/sdnext/issues/4396 (2025)
The Marigold depth preprocessor fails after the model has run:
TypeError: Got unsupported ScalarType BFloat16
"""
import numpy as np
import torch
from torch import nn


class MarigoldDepth(nn.Module):
    def __init__(self):
        super().__init__()
        self.unet = nn.Conv2d(3, 4, 3, padding=1)
        self.vae_decoder = nn.Conv2d(4, 1, 3, padding=1)

    def ensemble_depths(self, input_images):
        n_img = input_images.shape[0]
        _min = np.min(input_images.reshape((n_img, -1)).cpu().numpy(), axis=1)
        _max = np.max(input_images.reshape((n_img, -1)).cpu().numpy(), axis=1)
        scale = torch.from_numpy(1.0 / (_max - _min))
        shift = torch.from_numpy(_min)
        return (input_images - shift.view(-1, 1, 1, 1)) * scale.view(-1, 1, 1, 1)

    @torch.no_grad()
    def forward(self, image):
        depth = self.vae_decoder(torch.tanh(self.unet(image)))
        return self.ensemble_depths(depth).median(0).values


def factory():
    torch.manual_seed(0)
    return MarigoldDepth().to(torch.bfloat16), (torch.randn(5, 3, 16, 16).bfloat16(),)
