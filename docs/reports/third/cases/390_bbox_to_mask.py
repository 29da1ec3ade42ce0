"""https://github.com/kornia/kornia/pull/4336 (2026)
bbox_to_mask with half boxes takes a whole extra row into the mask on an image
larger than 2048 pixels; with float32 boxes the area is right.
"""
import torch
from torch import nn


class BBoxToMask(nn.Module):
    def __init__(self, width, height):
        super().__init__()
        self.width, self.height = width, height

    def forward(self, boxes):
        ys = torch.arange(self.height, device=boxes.device, dtype=boxes.dtype).view(1, -1, 1)
        xs = torch.arange(self.width, device=boxes.device, dtype=boxes.dtype).view(1, 1, -1)
        x0, y0 = boxes[:, 0, 0].view(-1, 1, 1), boxes[:, 0, 1].view(-1, 1, 1)
        x1, y1 = boxes[:, 2, 0].view(-1, 1, 1), boxes[:, 2, 1].view(-1, 1, 1)
        inside = (xs >= x0) & (xs <= x1) & (ys >= y0) & (ys <= y1)
        mask = inside.to(boxes.dtype)
        return mask, inside.flatten(1).sum(1)


def factory():
    boxes = torch.tensor([[[2.0, 1000.0], [9.0, 1000.0], [9.0, 3000.0], [2.0, 3000.0]]])
    return BBoxToMask(width=12, height=4096), (boxes.half(),)
