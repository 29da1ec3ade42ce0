"""https://github.com/vllm-project/llm-compressor/pull/847 (2024)

GPTQ of a model loaded in bfloat16 stops with
RuntimeError: "cholesky_cusolver" not implemented for 'BFloat16'
(on a CPU: "cholesky_cpu" not implemented for 'BFloat16')
"""
import torch
from torch import nn


class GPTQWrapper(nn.Module):
    def __init__(self, layer, percdamp=0.01):
        super().__init__()
        self.layer = layer
        self.percdamp = percdamp
        columns = layer.weight.shape[1]
        self.register_buffer("H", torch.zeros((columns, columns)))

    def add_batch(self, inp):
        inp = inp.reshape(-1, inp.shape[-1]).t().to(self.H.dtype)
        self.H += inp.matmul(inp.t()) * (2.0 / inp.shape[1])

    def compress(self):
        H = self.H.clone()
        diag = torch.arange(H.shape[0])
        H[diag, diag] += self.percdamp * H.diag().mean()
        H = torch.linalg.cholesky(H)
        Hinv = torch.linalg.cholesky(torch.cholesky_inverse(H), upper=True)
        W = self.layer.weight.detach().to(Hinv.dtype)
        scale = W.abs().amax(1, keepdim=True) / 7
        for i in range(W.shape[1]):
            q = (W[:, i:i + 1] / scale).round().clamp(-8, 7) * scale
            err = (W[:, i:i + 1] - q) / Hinv[i, i]
            W[:, i:] -= err @ Hinv[i:i + 1, i:]
            W[:, i:i + 1] = q
        return W.to(self.layer.weight.dtype)

    def forward(self, calibration):
        self.add_batch(calibration)
        return self.compress()


def factory():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    try:
        module = GPTQWrapper(nn.Linear(16, 8, bias=False))
    finally:
        torch.set_default_dtype(torch.float32)
    return module, (torch.randn(4, 32, 16, dtype=torch.bfloat16),)
