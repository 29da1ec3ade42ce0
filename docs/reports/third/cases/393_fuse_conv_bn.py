"""https://github.com/ultralytics/ultralytics/pull/24480 (2026)
model.to(torch.bfloat16).fuse() and the same with float16 stop with
RuntimeError: expected m1 and m2 to have the same dtype
"""
import torch
from torch import nn


def fuse_conv_and_bn(conv, bn):
    w_conv = conv.weight.view(conv.out_channels, -1)
    w_bn = torch.diag(bn.weight.div(torch.sqrt(bn.eps + bn.running_var)))
    fused_weight = torch.mm(w_bn, w_conv).view(conv.weight.shape)
    b_conv = torch.zeros(conv.out_channels, device=conv.weight.device) if conv.bias is None else conv.bias
    b_bn = bn.bias - bn.weight.mul(bn.running_mean).div(torch.sqrt(bn.running_var + bn.eps))
    fused_bias = torch.mm(w_bn, b_conv.reshape(-1, 1)).reshape(-1) + b_bn
    conv.weight.data = fused_weight
    conv.register_parameter("bias", nn.Parameter(fused_bias))
    return conv.requires_grad_(False)


class Conv(nn.Module):
    def __init__(self, c1, c2):
        super().__init__()
        self.conv = nn.Conv2d(c1, c2, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(c2)
        self.act = nn.SiLU()

    def fuse(self):
        self.conv = fuse_conv_and_bn(self.conv, self.bn)
        self.bn = nn.Identity()

    def forward(self, x):
        return self.act(self.bn(self.conv(x)))


class AutoBackend(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.fused = False

    def forward(self, im):
        if not self.fused:
            for m in self.model.modules():
                if isinstance(m, Conv):
                    m.fuse()
            self.fused = True
        return self.model(im)


def factory():
    torch.manual_seed(0)
    model = nn.Sequential(Conv(3, 8), Conv(8, 8)).eval().to(torch.bfloat16)
    return AutoBackend(model), (torch.randn(1, 3, 16, 16).bfloat16(),)
