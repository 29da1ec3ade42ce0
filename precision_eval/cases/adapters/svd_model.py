"""The module around diffusers' UNet of Stable Video Diffusion; imports torch."""

from __future__ import annotations

import torch
from torch import nn

from precision_eval.cases.adapters.wrapped import WrappedModel


class SvdUNet(WrappedModel):
    """Latents, timestep, image embedding and labels in, the denoised sample out."""

    def __init__(self, unet: nn.Module, *, working_dtype: torch.dtype) -> None:
        super().__init__(working_dtype=working_dtype)
        self.unet = unet

    def run(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Denoise one step."""
        latents, timestep, image, labels = inputs
        sample: torch.Tensor = self.unet(
            latents, timestep, encoder_hidden_states=image, added_time_ids=labels, return_dict=False
        )[0]
        return sample
