"""https://github.com/gradients-ai/G.O.D/pull/1231 (2026)

Model preparation of Qwen3-8B-Base, a checkpoint saved in bfloat16: the statistics
pass prints "Eval loop done (loss=nan, 2000 batches)".
"""
import torch
from torch import nn
import torch.nn.functional as F

CONFIG = {"torch_dtype": torch.bfloat16}


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.up_proj = nn.Linear(width, 4 * width, bias=False)
        self.down_proj = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        return x + self.down_proj(F.silu(self.up_proj(self.norm(x))))


class BaseModel(nn.Module):
    def __init__(self, vocab=64, width=32, depth=3):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm = nn.RMSNorm(width)
        self.lm_head = nn.Linear(width, vocab, bias=False)
        with torch.no_grad():
            self.layers[1].up_proj.weight[0].mul_(600)
            self.layers[1].down_proj.weight[:, 0].mul_(4000)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        logits = self.lm_head(self.norm(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def load_base_model():
    torch.manual_seed(0)
    return BaseModel().to(dtype=torch.float16)


def factory():
    torch.manual_seed(1)
    return load_base_model().eval(), (torch.randint(0, 64, (2, 24)),)
