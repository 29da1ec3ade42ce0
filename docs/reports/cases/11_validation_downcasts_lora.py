# huggingface/diffusers#13895: LoRA training in fp16 dies after a validation: "Attempting to unscale FP16 gradients."
# answer: log_validation moves the live unet with .to(dtype=float16) and so narrows the LoRA; move it without a dtype
import torch
from torch import nn


class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(32, 32).half().requires_grad_(False)
        self.lora_down = nn.Linear(32, 4, bias=False)  # float32, as cast_training_params leaves them
        self.lora_up = nn.Linear(4, 32, bias=False)

    def forward(self, x):
        return self.base(x) + self.lora_up(self.lora_down(x))


class Trainer(nn.Module):
    def __init__(self):
        super().__init__()
        self.unet = Unet()

    @torch.no_grad()
    def log_validation(self, x, weight_dtype=torch.float16):
        return self.unet.to(dtype=weight_dtype)(x.to(weight_dtype))

    @torch.enable_grad()
    def step(self, x, target):
        trained = [p for p in self.unet.parameters() if p.requires_grad]
        scaler, optimizer = torch.amp.GradScaler("cpu", init_scale=64.0), torch.optim.SGD(trained, lr=1e-3)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = (self.unet(x).float() - target).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        return torch.nn.utils.clip_grad_norm_(trained, 1.0)

    def forward(self, x, target):
        self.step(x, target)
        self.log_validation(x)
        return self.step(x, target)


def factory():
    return Trainer(), (torch.randn(8, 32), torch.randn(8, 32))
