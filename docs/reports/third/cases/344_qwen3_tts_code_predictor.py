"""https://github.com/vllm-project/vllm-omni/pull/2470 (2026)

Qwen3-TTS served with float16 weights on a T4: the code predictor crashes in warm-up with
"expected mat1 and mat2 to have the same dtype, but got: float != c10::Half".
"""
import torch
from torch import nn


class CodePredictorModel(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gate, self.up = nn.Linear(dim, 2 * dim), nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Qwen3TTSCodePredictor(nn.Module):
    def __init__(self, dim=32, groups=4, vocab=64):
        super().__init__()
        self.dim, self.groups, self._proj_buf = dim, groups, None
        self.model = CodePredictorModel(dim)
        self.embeds = nn.ModuleList([nn.Embedding(vocab, dim) for _ in range(groups)])
        self.heads = nn.ModuleList([nn.Linear(dim, vocab) for _ in range(groups)])

    def _ensure_buffers(self, batch, dtype):
        if self._proj_buf is None or self._proj_buf.dtype != dtype:
            self._proj_buf = torch.zeros(batch, self.groups + 2, self.dim, dtype=dtype)

    def forward(self, last_talker_hidden, layer0_embed):
        dtype = layer0_embed.dtype
        self._ensure_buffers(layer0_embed.shape[0], dtype)
        self._proj_buf[:, 0] = last_talker_hidden
        self._proj_buf[:, 1] = layer0_embed
        codes = []
        for g in range(self.groups):
            hidden = self.model(self._proj_buf[:, : g + 2])
            code = self.heads[g](hidden[:, -1]).argmax(-1)
            codes.append(code)
            self._proj_buf[:, g + 2] = self.embeds[g](code)
        return torch.stack(codes, 1)


def factory():
    torch.manual_seed(0)
    predictor = Qwen3TTSCodePredictor().half().eval()
    for p in predictor.parameters():
        p.requires_grad_(False)
    return predictor, (torch.randn(2, 32), torch.randn(2, 32))
