"""https://github.com/pytorch/pytorch/issues/143900 (2024)

FSDP with MixedPrecision(param, reduce, buffer = float16): a convolution with a kernel in a buffer meets half and float.
"""

import torch
from torch import nn


class NonLearnableConv(nn.Module):
    def __init__(self, channels=8):
        super().__init__()
        taps = torch.tensor([1.0, 3.0, 3.0, 1.0])
        kernel = torch.outer(taps, taps) / taps.sum() ** 2
        self.register_buffer("kernel", kernel.expand(channels, 1, 4, 4).clone())

    def forward(self, x):
        return nn.functional.conv2d(x, self.kernel, groups=self.kernel.shape[0], stride=2, padding=1)


class Block(nn.Module):
    def __init__(self, channels=8):
        super().__init__()
        self.conv, self.down = nn.Conv2d(channels, channels, 3, padding=1), NonLearnableConv(channels)

    def forward(self, x):
        return self.down(torch.relu(self.conv(x)))


class FSDPRoot(nn.Module):
    """Every block is wrapped, so the root itself manages no parameter."""

    def __init__(self, module, param_dtype=torch.float16, buffer_dtype=torch.float16):
        super().__init__()
        self.module, self.param_dtype, self.buffer_dtype = module, param_dtype, buffer_dtype
        self.handle = list(module.parameters(recurse=False))

    def _root_pre_forward(self):
        for parameter in self.module.parameters():
            parameter.data = parameter.data.to(self.param_dtype)
        should_cast_buffers_to_full_prec = not self.handle
        if not should_cast_buffers_to_full_prec:
            for module in self.module.modules():
                for name, buffer in module.named_buffers(recurse=False):
                    setattr(module, name, buffer.to(self.buffer_dtype))

    def forward(self, x):
        self._root_pre_forward()
        return self.module(x.to(self.param_dtype))


def factory():
    return FSDPRoot(nn.Sequential(Block(), Block())), (torch.randn(1, 8, 16, 16),)
