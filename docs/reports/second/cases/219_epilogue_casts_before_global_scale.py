"""https://github.com/vllm-project/vllm/pull/33972 (2026)

Dense NVFP4 models with dtype=float16 give NaN on the Marlin path; with bfloat16 they are right.
"""

import torch
from torch import nn

FP4_VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


class MarlinNvfp4Linear(nn.Module):
    def __init__(self, n_in, n_out, block=16):
        super().__init__()
        codes = torch.randint(0, 8, (n_out, n_in)), torch.randint(0, 2, (n_out, n_in)) * 2 - 1
        self.register_buffer("fp4", FP4_VALUES[codes[0]] * codes[1])
        self.register_buffer("block_scale", 200 + 248 * torch.rand(n_out, n_in // block))
        self.global_scale = 1 / (n_in**0.5 * 1000)

    def forward(self, x):
        weight = self.fp4.float() * self.block_scale.float().repeat_interleave(16, dim=1)
        accumulators = x.float() @ weight.t()
        return accumulators.to(x.dtype) * self.global_scale


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(128)
        with torch.no_grad():
            self.norm.weight.fill_(8.0)
        self.gate_up, self.down = MarlinNvfp4Linear(128, 256), MarlinNvfp4Linear(128, 128)

    def forward(self, x):
        gate, up = self.gate_up(self.norm(x)).chunk(2, -1)
        return x + self.down(nn.functional.silu(gate) * up)


def factory():
    return Mlp().half().eval(), (torch.randn(1, 8, 128).half(),)
