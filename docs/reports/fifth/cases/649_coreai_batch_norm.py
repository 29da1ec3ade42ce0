"""https://github.com/apple/coreai-torch/pull/54 (2026)

A network in fp16 with its batch norms kept in fp32 is converted; the converted model returns
the bare bias in some channels, where the original does not.
"""
import torch
from torch import nn


def batch_norm_body(x, weight, bias, running_mean, running_var, eps):
    shape = (1, -1, 1, 1)
    weight, bias = weight.to(x.dtype).view(shape), bias.to(x.dtype).view(shape)
    mean, var = running_mean.to(x.dtype).view(shape), running_var.to(x.dtype).view(shape)
    return (x - mean) * torch.rsqrt(var + eps) * weight + bias


class CompositeBatchNorm(nn.Module):
    def __init__(self, bn):
        super().__init__()
        self.weight, self.bias, self.eps = bn.weight, bn.bias, bn.eps
        self.register_buffer("running_mean", bn.running_mean)
        self.register_buffer("running_var", bn.running_var)

    def forward(self, x):
        return batch_norm_body(x, self.weight, self.bias, self.running_mean, self.running_var, self.eps)


class Backbone(nn.Module):
    def __init__(self, channels=8):
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 3, padding=1).half()
        self.bn = nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(self.bn(self.conv(x)))


def convert(model):
    model.bn = CompositeBatchNorm(model.bn)
    return model


def factory():
    torch.manual_seed(0)
    model = Backbone().eval()
    with torch.no_grad():
        model.bn.running_var.copy_(torch.tensor([0.4, 2.5, 310.0, 9.0e4, 1.6e5, 40.0, 7.5e4, 1.2]))
        model.bn.running_mean.copy_(torch.tensor([0.1, -0.3, 4.0, 120.0, -260.0, 1.5, 35.0, 0.0]))
        model.conv.weight *= (model.bn.running_var.sqrt() / 0.55).view(-1, 1, 1, 1).half()
        nn.init.uniform_(model.bn.weight, 0.5, 1.5)
        nn.init.normal_(model.bn.bias, 0.2, 0.2)
    return convert(model), (torch.randn(2, 3, 12, 12, dtype=torch.float16),)
