"""https://github.com/facebookresearch/sam3/pull/350 (2025)
The video demo without torch.autocast dies in the tracker:
RuntimeError: Input type (c10::BFloat16) and bias type (float) should be the same
"""
import torch
from torch import nn


class Sam3Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Conv2d(3, 16, 3, padding=1)
        self.neck = nn.Conv2d(16, 16, 3, stride=2, padding=1)

    def forward(self, frame):
        x = self.backbone(frame)
        sam2_backbone_fpn = [x, self.neck(x)]
        return [feat.to(torch.bfloat16) for feat in sam2_backbone_fpn]


class Sam3Tracker(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv_s0 = nn.Conv2d(16, 4, 1)
        self.conv_s1 = nn.Conv2d(16, 8, 1)

    def forward(self, features):
        s0 = self.conv_s0(features[0])
        s1 = self.conv_s1(features[1])
        return s0, s1


class Sam3VideoInference(nn.Module):
    def __init__(self):
        super().__init__()
        self.detector = Sam3Detector()
        self.tracker = Sam3Tracker()

    def forward(self, frame):
        return self.tracker(self.detector(frame))


def factory():
    torch.manual_seed(0)
    return Sam3VideoInference(), (torch.randn(1, 3, 16, 16),)
