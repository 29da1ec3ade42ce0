# huggingface/optimum-intel#1098: "Expected attn_mask dtype to be bool or float or to match query dtype ... c10::Half"
# answer: the mask takes the token embedding's float16 while the query is float32; build the mask in the query's dtype
import torch
import torch.nn.functional as F
from torch import nn


class WideLinear(nn.Linear):
    """As the exporter patches them: the weight stays in half, the operation runs in float32."""

    def forward(self, x):
        return F.linear(x.float(), self.weight.float(), self.bias.float())


class BigCode(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(60, 64)
        self.c_attn = WideLinear(64, 192)

    def forward(self, input_ids, attention_mask):
        x = self.wte(input_ids)
        q, k, v = (t.unflatten(-1, (4, 16)).transpose(1, 2) for t in self.c_attn(x).chunk(3, -1))
        T = input_ids.shape[1]
        keep = torch.ones(T, T, dtype=torch.bool).tril() & attention_mask[:, None, None, :]
        bias = torch.zeros(keep.shape, dtype=self.wte.weight.dtype)
        bias = bias.masked_fill(~keep, torch.finfo(self.wte.weight.dtype).min)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def factory():
    mask = torch.ones(1, 7, dtype=torch.bool)
    return BigCode().half().eval(), (torch.randint(0, 60, (1, 7)), mask)
