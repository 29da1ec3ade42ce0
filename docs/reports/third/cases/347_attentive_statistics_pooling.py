"""https://github.com/speechbrain/speechbrain/pull/3081 (2026; issue 2544)

ECAPA-TDNN in FP16 or BF16: AttentiveStatisticsPooling reports a dtype mismatch in the convolution that
follows the concatenation; the same layer without global context is fine.
"""
import torch
from torch import nn


def length_to_mask(lengths, size):
    return torch.arange(size)[None, :] < lengths[:, None]


class AttentiveStatisticsPooling(nn.Module):
    def __init__(self, channels, attention_channels=16, global_context=True):
        super().__init__()
        self.eps, self.global_context = 1e-12, global_context
        self.tdnn = nn.Conv1d(channels * 3 if global_context else channels, attention_channels, 1)
        self.conv = nn.Conv1d(attention_channels, channels, 1)

    def _compute_statistics(self, x, m, dim=2):
        mean = (m * x).sum(dim)
        std = torch.sqrt((m * (x - mean.unsqueeze(dim)).pow(2)).sum(dim).clamp(self.eps))
        return mean, std

    def forward(self, x, lengths):
        L = x.shape[-1]
        mask = length_to_mask(lengths * L, L).unsqueeze(1)
        attn = x
        if self.global_context:
            total = mask.sum(dim=2, keepdim=True).float()
            mean, std = self._compute_statistics(x, mask / total)
            attn = torch.cat([x, mean.unsqueeze(2).repeat(1, 1, L), std.unsqueeze(2).repeat(1, 1, L)], dim=1)
        attn = self.conv(torch.tanh(self.tdnn(attn)))
        attn = attn.masked_fill(~mask, float("-inf")).softmax(dim=2)
        mean, std = self._compute_statistics(x, attn)
        return torch.cat((mean, std), dim=1).unsqueeze(2)


def factory():
    torch.manual_seed(0)
    pool = AttentiveStatisticsPooling(24).to(torch.bfloat16).eval()
    return pool, (torch.randn(3, 24, 60).to(torch.bfloat16), torch.tensor([1.0, 0.8, 0.5]))
