# engichang1467/Open-Rig3R#35: training flattens early: fp16 autocast without a GradScaler rounds gradients to zero
# answer: use bfloat16 autocast, or scale the loss with a GradScaler; nothing warns of the lost gradients
import torch
from torch import nn


class TrainStep(nn.Module):
    """The gradients of one step, concatenated."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(48, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.raymap = nn.Linear(64, 6)

    def forward(self, images, rays):
        with torch.enable_grad(), torch.autocast("cpu", dtype=torch.float16):
            directions = self.raymap(self.encoder(images))
            cosine = nn.functional.cosine_similarity(directions.float(), rays, dim=-1)
            loss = 3e-4 * (1 - cosine).mean()
            gradients = torch.autograd.grad(loss, list(self.parameters()))
        return torch.cat([gradient.flatten() for gradient in gradients])


def factory():
    return TrainStep(), (0.01 * torch.randn(256, 48), torch.randn(256, 6))
