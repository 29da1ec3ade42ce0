"""https://github.com/sgl-project/sglang/pull/37133 (2026)
With a quant_config, nearly every token of GLM-5.2 is routed to another top-8 set of
experts than in the Hugging Face model.
"""
import torch
import torch.nn.functional as F
from torch import nn


class MoEGate(nn.Module):
    def __init__(self, hidden=32, n_routed_experts=256, top_k=8, quant_config=None):
        super().__init__()
        self.top_k = top_k
        self.weight = nn.Parameter(torch.empty(n_routed_experts, hidden, dtype=torch.bfloat16))
        correction_bias_dtype = torch.bfloat16 if quant_config is not None else torch.float32
        self.e_score_correction_bias = nn.Parameter(
            torch.empty(n_routed_experts, dtype=correction_bias_dtype)
        )

    def load_weights(self, weights):
        for name, loaded in weights.items():
            getattr(self, name).data.copy_(loaded)

    def forward(self, hidden_states):
        logits = F.linear(hidden_states, self.weight).float()
        scores = logits.sigmoid()
        choice = scores + self.e_score_correction_bias
        topk_ids = choice.topk(self.top_k, dim=-1).indices.sort(-1).values
        topk_weights = scores.gather(1, topk_ids)
        return topk_ids, topk_weights / topk_weights.sum(-1, keepdim=True)


def factory():
    torch.manual_seed(0)
    gate = MoEGate(quant_config={"quant_method": "fp8"})
    gate.load_weights({
        "weight": torch.randn(256, 32) * 0.02,
        "e_score_correction_bias": 6.817 + 0.246 * torch.rand(256),
    })
    return gate, (torch.randn(16, 32).bfloat16(),)
