"""https://github.com/vllm-project/vllm-omni/pull/4861 (2026)

Voxtral TTS on a T4: the engine falls back from bfloat16 to float16, then stage 1 dies in warm-up with
"expected scalar type BFloat16 but found Half".
"""
import torch
from torch import nn


class VoxtralTTSAudioTokenizer(nn.Module):
    def __init__(self, codes=64, books=4, dim=32):
        super().__init__()
        self.books = nn.ModuleList([nn.Embedding(codes, dim) for _ in range(books)])
        self.in_conv = nn.Conv1d(dim, dim, 7, padding=3)
        self.up = nn.ConvTranspose1d(dim, dim // 2, 8, stride=4, padding=2)
        self.out_conv = nn.Conv1d(dim // 2, 1, 7, padding=3)

    def decode(self, codes, dtype):
        z = sum(book(codes[:, i]) for i, book in enumerate(self.books))
        z = z.transpose(1, 2).to(dtype)
        z = nn.functional.elu(self.in_conv(z))
        z = nn.functional.elu(self.up(z))
        return torch.tanh(self.out_conv(z))

    def decode_helper_batch_async(self, codes):
        return self.decode(codes, dtype=torch.bfloat16)

    def forward(self, codes):
        return self.decode_helper_batch_async(codes).float()


def factory():
    torch.manual_seed(0)
    tokenizer = VoxtralTTSAudioTokenizer().to(torch.float16).eval()
    return tokenizer, (torch.randint(0, 64, (1, 4, 25)),)
