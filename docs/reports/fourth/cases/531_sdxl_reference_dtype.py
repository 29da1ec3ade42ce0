"""https://github.com/huggingface/diffusers/pull/10670 (2025)

StableDiffusionXLReferencePipeline loaded with torch_dtype=torch.float16, VAE with force_upcast, together with an IP
adapter: the reference image is encoded, then the unet raises
RuntimeError: mat1 and mat2 must have the same dtype, but got Float and Half
"""
import torch
from torch import nn


class AutoencoderKL(nn.Module):
    def __init__(self):
        super().__init__()
        self.force_upcast = True
        self.encoder = nn.Conv2d(3, 8, 4, stride=4)

    def encode(self, image):
        return self.encoder(image)[:, :4]


class UNet2DConditionModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv_in = nn.Conv2d(4, 16, 3, padding=1)
        self.encoder_hid_proj = nn.Linear(32, 16)
        self.conv_out = nn.Conv2d(16, 4, 3, padding=1)

    def forward(self, latents, image_embeds):
        h = self.conv_in(latents) + self.encoder_hid_proj(image_embeds)[:, :, None, None]
        return self.conv_out(torch.nn.functional.silu(h))


class StableDiffusionXLReferencePipeline(nn.Module):
    def __init__(self):
        super().__init__()
        self.vae = AutoencoderKL()
        self.unet = UNet2DConditionModel()

    @property
    def dtype(self):
        return next(next(self.children()).parameters()).dtype

    def prepare_ref_latents(self, refimage, dtype):
        if self.vae.force_upcast and self.vae.encoder.weight.dtype == torch.float16:
            self.vae.to(dtype=torch.float32)
            refimage = refimage.to(torch.float32)
        ref_image_latents = self.vae.encode(refimage)
        return ref_image_latents.to(dtype)

    def forward(self, refimage, image_embeds):
        latents = self.prepare_ref_latents(refimage, self.unet.conv_in.weight.dtype)
        image_embeds = image_embeds.to(self.dtype)
        return self.unet(latents, image_embeds)


def factory():
    torch.manual_seed(0)
    pipe = StableDiffusionXLReferencePipeline().half().eval()
    return pipe, (torch.rand(1, 3, 32, 32).half(), torch.randn(1, 32).half())
