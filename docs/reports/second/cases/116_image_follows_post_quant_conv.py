"""https://github.com/huggingface/diffusers/pull/7858 (2024)

Image-to-image of SDXL in fp16 with a VAE that is upcast raises where the image is encoded.
"""
import torch
from torch import nn


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 8, 3, 2, padding=1))
        self.quant_conv, self.post_quant_conv = nn.Conv2d(8, 8, 1), nn.Conv2d(4, 4, 1)
        self.decoder = nn.ModuleDict({"conv_in": nn.Conv2d(4, 16, 3, padding=1), "conv_out": nn.Conv2d(16, 3, 1)})

    def encode(self, image):
        return self.quant_conv(self.encoder(image)).chunk(2, dim=1)[0]


class Upscale(nn.Module):
    def __init__(self):
        super().__init__()
        self.vae, self.unet = Vae(), nn.Conv2d(4, 4, 3, padding=1)

    def upcast_vae(self):
        dtype = self.vae.quant_conv.weight.dtype
        self.vae.to(dtype=torch.float32)
        # with an attention that saves memory these need not be float32
        self.vae.post_quant_conv.to(dtype)
        self.vae.decoder["conv_in"].to(dtype)

    def encode_image(self, image):
        self.upcast_vae()
        image = image.to(next(iter(self.vae.post_quant_conv.parameters())).dtype)
        latents = self.vae.encode(image)
        self.vae.to(dtype=torch.float16)
        return latents.to(torch.float16)

    def forward(self, image):
        return self.unet(self.encode_image(image))


def factory():
    return Upscale().half().eval(), (torch.rand(1, 3, 16, 16).half(),)
