# kohya-ss/musubi-tuner#580: any LoRA on float8 weights: "Promotion for Float8 Types is not supported"
# answer: the weight hook has to widen the float8 weight before it adds the LoRA and store the sum as float8 (#582)
import torch
import torch.nn.functional as F
from torch import nn


def weight_hook(model_weight, up_weight, down_weight, multiplier):
    return model_weight + multiplier * (up_weight @ down_weight)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter((torch.randn(64, 64) / 8).to(torch.float8_e4m3fn), requires_grad=False)
        self.lora_up = nn.Parameter(torch.randn(64, 4).bfloat16() / 8)
        self.lora_down = nn.Parameter(torch.randn(4, 64).bfloat16() / 8)

    def forward(self, x):
        merged = weight_hook(self.weight, self.lora_up, self.lora_down, 0.8)
        return F.linear(x, merged.to(x.dtype))


def factory():
    return Block().eval(), (torch.randn(2, 5, 64).bfloat16(),)
