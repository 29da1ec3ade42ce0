"""https://github.com/Comfy-Org/ComfyUI/pull/11213 (2025)

A LoRA is merged into an fp8 checkpoint: the patched weight is in fp16 and is quantized again. Layers with small
weights come back as NaN, so the image is black. With bf16 patched weights the same layers are fine.
"""
import torch
from torch import nn


class TensorCoreFP8Layout:
    @classmethod
    def quantize(cls, tensor, scale=None, dtype=torch.float8_e4m3fn):
        if scale is None or scale == "recalculate":
            scale = torch.amax(tensor.abs()).to(torch.float32) / torch.finfo(dtype).max
        lp_amax = torch.finfo(dtype).max
        tensor_scaled = tensor * (1.0 / scale).to(tensor.dtype)
        torch.clamp(tensor_scaled, min=-lp_amax, max=lp_amax, out=tensor_scaled)
        return tensor_scaled.to(dtype), scale

    @staticmethod
    def dequantize(qdata, scale, orig_dtype):
        return qdata.to(orig_dtype) * scale.to(orig_dtype)


class PatchedLinear(nn.Module):
    def __init__(self, weight, up, down, strength=1.0):
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("lora_up", up)
        self.register_buffer("lora_down", down)
        self.strength = strength

    def forward(self, x):
        patched = self.weight + self.strength * (self.lora_up @ self.lora_down)
        qdata, scale = TensorCoreFP8Layout.quantize(patched, scale="recalculate")
        return nn.functional.linear(x, TensorCoreFP8Layout.dequantize(qdata, scale, x.dtype))


def factory():
    torch.manual_seed(0)
    weight = (torch.randn(48, 64) * 1e-3).clamp(-4e-3, 4e-3)
    up, down = torch.randn(48, 4) * 0.01, torch.randn(4, 64) * 0.02
    weight[44:], up[44:] = 0.0, 0.0  # padded output channels
    return PatchedLinear(weight.half(), up.half(), down.half()), (torch.randn(2, 64).half(),)
