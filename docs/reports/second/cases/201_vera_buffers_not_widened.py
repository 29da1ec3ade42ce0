"""https://github.com/huggingface/peft/pull/1874 (2024)

VeRA on a bfloat16 or float16 model: mat1 and mat2 must have the same dtype, in the adapter's own linear.
"""

import torch
import torch.nn.functional as F
from torch import nn


class VeraLinear(nn.Module):
    def __init__(self, n_in, n_out, r=8):
        super().__init__()
        self.base_layer = nn.Linear(n_in, n_out)
        self.register_buffer("vera_A", torch.randn(r, n_in) / n_in**0.5)
        self.register_buffer("vera_B", torch.randn(n_out, r) / r**0.5)
        self.vera_lambda_d = nn.Parameter(torch.full((r,), 0.1))
        self.vera_lambda_b = nn.Parameter(torch.randn(n_out) / 10)

    def forward(self, x):
        previous_dtype = x.dtype
        result = self.base_layer(x)
        x = x.to(self.vera_lambda_d.dtype)
        result = result + self.vera_lambda_b * F.linear(self.vera_lambda_d * F.linear(x, self.vera_A), self.vera_B)
        return result.to(previous_dtype)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.v_proj, self.o_proj = VeraLinear(48, 48), VeraLinear(48, 48), nn.Linear(48, 48)

    def forward(self, x):
        q, v = self.q_proj(x), self.v_proj(x)
        return self.o_proj(F.scaled_dot_product_attention(q, q, v))


def cast_adapter_dtype(model):
    """Adapters are trained in float32, whatever the base model is in."""
    for name, parameter in model.named_parameters():
        if "vera_" in name:
            parameter.data = parameter.data.float()
    return model


def factory():
    return cast_adapter_dtype(Attention().bfloat16()).eval(), (torch.randn(2, 7, 48).bfloat16(),)
