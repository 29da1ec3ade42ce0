"""https://github.com/huggingface/transformers/pull/48817 (2026)

NemotronAsrStreaming with attn_implementation="eager": the encoder returns NaN, or looks at the frames
it should not see; with sdpa the same audio is transcribed properly.
"""
import torch
from torch import nn


def create_bidirectional_mask(lengths, size, dtype):
    allowed = torch.arange(size)[None, :] < lengths[:, None]
    zeros = torch.zeros(lengths.numel(), 1, size, size, dtype=dtype)
    return zeros.masked_fill(~allowed[:, None, None, :], torch.finfo(dtype).min)


class NemotronAsrStreamingEncoderAttention(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads, self.hd = heads, dim // heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.rel = nn.Parameter(torch.randn(heads, self.hd, 24) * 0.1)
        self.o_proj = nn.Linear(dim, dim)

    def forward(self, hidden_states, lengths):
        b, t, _ = hidden_states.shape
        q, k, v = self.qkv(hidden_states).view(b, t, 3, self.heads, self.hd).permute(2, 0, 3, 1, 4)
        attention_mask = create_bidirectional_mask(lengths, t, q.dtype)
        matrix_bd = torch.einsum("bhtd,hds->bhts", q, self.rel[..., :t])
        matrix_bd = matrix_bd.masked_fill_(attention_mask.logical_not(), float("-inf"))
        scores = (q @ k.transpose(-1, -2) + matrix_bd) * self.hd ** -0.5
        out = scores.softmax(-1) @ v
        return self.o_proj(out.transpose(1, 2).reshape(b, t, -1))


def factory():
    torch.manual_seed(0)
    layer = NemotronAsrStreamingEncoderAttention().eval()
    for p in layer.parameters():
        p.requires_grad_(False)
    return layer, (torch.randn(2, 20, 32), torch.tensor([20, 13]))
