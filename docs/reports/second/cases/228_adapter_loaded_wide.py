"""https://github.com/huggingface/peft/issues/2421 (2025)

An adapter that was saved in float16 is float32 after loading; the model needs more memory and time than expected.
"""

import torch
from torch import nn


class LoraLinear(nn.Module):
    def __init__(self, n_in, n_out, r=8):
        super().__init__()
        self.base_layer = nn.Linear(n_in, n_out).half().requires_grad_(False)
        self.lora_A, self.lora_B = nn.Linear(n_in, r, bias=False).half(), nn.Linear(r, n_out, bias=False).half()
        self.scaling = 2.0

    def forward(self, x):
        torch_result_dtype = x.dtype
        result = self.base_layer(x)
        x = x.to(self.lora_A.weight.dtype)
        result = result + self.lora_B(self.lora_A(x)) * self.scaling
        return result.to(torch_result_dtype)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (LoraLinear(64, 64) for _ in range(4))

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (4, 16)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def load_adapter(model, autocast_adapter_dtype=True):
    for module in model.modules():
        if isinstance(module, LoraLinear) and autocast_adapter_dtype:
            module.lora_A.float()
            module.lora_B.float()
    return model


def factory():
    return load_adapter(Attention()).eval(), (torch.randn(1, 24, 64).half(),)
