# vllm-project/vllm-omni#6545: every request crashes on cards without bfloat16: the talker's embedding dtype is fixed
# answer: _embedding_dtype has to be the dtype that the model was loaded in, not torch.bfloat16 by hand
import torch
from torch import nn


class Talker(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.model_dtype = dtype
        self._embedding_dtype = torch.bfloat16
        self.codec = nn.Embedding(64, 32)
        self.register_buffer("pad", torch.randn(1, 32))
        self.proj = nn.Linear(32, 64)

    def preprocess_decode(self, codes):
        return (self.codec(codes) + self.pad).to(self._embedding_dtype)

    def forward(self, codes, rows):
        request = self.preprocess_decode(codes)
        inputs_embeds = torch.zeros(8, 32, dtype=self.model_dtype)
        inputs_embeds.index_copy_(0, rows, request)
        return self.proj(inputs_embeds)


def factory():
    talker = Talker(torch.float16).half().eval()
    return talker, (torch.randint(0, 64, (3,)), torch.tensor([1, 4, 6]))
