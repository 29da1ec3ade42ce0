"""https://github.com/unslothai/unsloth/issues/236 (2024)

LoRA in float16 with lm_head and embed_tokens trained as well: ValueError: Attempting to unscale FP16 gradients.
"""

import torch
from torch import nn


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(60, 32)
        self.up_proj = nn.Linear(32, 32)
        self.lm_head = nn.Linear(32, 60, bias=False)

    def forward(self, tokens):
        hidden = self.embed_tokens(tokens)
        hidden = hidden + self.up_proj(hidden) + self.lora_B(self.lora_A(hidden))
        return self.lm_head(hidden)


def get_peft_model(model, modules_to_save):
    model.requires_grad_(False)
    model.lora_A, model.lora_B = nn.Linear(32, 4, bias=False), nn.Linear(4, 32, bias=False)  # float32
    for name in modules_to_save:
        getattr(model, name).requires_grad_(True)
    return model


class Trainer(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = get_peft_model(Llama().half(), modules_to_save=("embed_tokens", "lm_head"))

    @torch.enable_grad()
    def forward(self, tokens):
        trained = [p for p in self.model.parameters() if p.requires_grad]
        scaler, optimizer = torch.amp.GradScaler("cpu", init_scale=256.0), torch.optim.SGD(trained, lr=1e-3)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = self.model(tokens)
        loss = nn.functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), tokens[:, 1:].flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
        scaler.step(optimizer)
        return loss.detach(), norm


def factory():
    return Trainer(), (torch.randint(0, 60, (2, 9)),)
