"""https://github.com/balazik/ComfyUI-PuLID-Flux/issues/6 (2024)

On an RTX 2080 Ti: "model weight dtype torch.bfloat16, manual cast: torch.float16". Flux alone runs; with Apply PuLID
Flux the sampler stops with RuntimeError: expected scalar type Half but found BFloat16.
"""
import torch
from torch import nn


class ManualCastLinear(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype))


class Flux(nn.Module):
    def __init__(self, dim, dtype):
        super().__init__()
        self.dtype, self.pulid_data = dtype, None
        self.img_in, self.final_layer = ManualCastLinear(16, dim), ManualCastLinear(dim, 16)
        self.double_blocks = nn.ModuleList(ManualCastLinear(dim, dim) for _ in range(2))
        self.to(dtype)

    def forward(self, img):
        img = self.img_in(img)
        for block in self.double_blocks:
            img = img + block(nn.functional.silu(img))
            if self.pulid_data is not None:
                attention, embedding, weight = self.pulid_data
                img = img + weight * attention(embedding, img)
        return self.final_layer(img)


class PerceiverAttentionCA(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.to_q, self.to_kv = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)

    def forward(self, x, latents):
        k, v = self.to_kv(x).chunk(2, dim=-1)
        return nn.functional.scaled_dot_product_attention(self.to_q(self.norm(latents)), k, v)


class ApplyPulidFlux(nn.Module):
    def __init__(self, dim=32, unet_dtype=torch.bfloat16, manual_cast_dtype=torch.float16):
        super().__init__()
        self.diffusion_model, self.manual_cast_dtype = Flux(dim, unet_dtype), manual_cast_dtype
        self.pulid_encoder, self.pulid_ca = nn.Linear(20, dim), PerceiverAttentionCA(dim)

    def apply_model(self, x):
        return self.diffusion_model(x.to(self.manual_cast_dtype or self.diffusion_model.dtype)).float()

    def forward(self, face_features, latent):
        dtype = self.diffusion_model.dtype
        self.pulid_encoder.to(dtype)
        self.pulid_ca.to(dtype)
        embedding = self.pulid_encoder(face_features.to(dtype))
        self.diffusion_model.pulid_data = (self.pulid_ca, embedding, 0.8)
        return self.apply_model(latent)


def factory():
    torch.manual_seed(0)
    return ApplyPulidFlux().eval(), (torch.randn(1, 5, 20), torch.randn(1, 24, 16))
