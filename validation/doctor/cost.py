"""What observing costs: an observed forward beside an unobserved one, paired, in one process.

The observed call is what the doctor runs, set-up included: naming every tensor, the hooks, the mode and
the judgement. *Dtypes* follows dtypes only; *dtypes and values* also looks at every value, which is what ``examine``
does. The decoder is of :mod:`.small` with torch's own layers at the width and length stated.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from precision_eval.diagnose.doctor.findings import findings_of
from precision_eval.fixes.packing import ExaminedModel
from precision_eval.measure.latency import Candidate, compare_latency
from precision_eval.measure.model_calls import observe_call

MOST = 3.0
"""Of an unobserved forward."""

SIZES = ((32, 12), (64, 16), (128, 32), (256, 64), (512, 128), (1024, 256))
"""Width and length."""


class Block(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.project(self.first(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.second(x))))


def cost(dtype: str, width: int, length: int, *, budget_s: float) -> list[dict[str, Any]]:
    """Ratios of an observed to an unobserved forward of four layers."""
    torch.manual_seed(0)
    of_torch = getattr(torch, dtype)
    model = nn.Sequential(*(Block(width) for _ in range(4))).eval().to(of_torch)
    subject = ExaminedModel(model, (torch.randn(1, length, width, dtype=of_torch),), {})
    plain, watched, counted = (copy.deepcopy(subject) for _ in range(3))
    ratios = compare_latency(
        {
            "forward": Candidate(torch.no_grad()(lambda: plain(*plain.tensors))),
            "dtypes": Candidate(lambda: _observe(watched, of_torch, values=False)),
            "dtypes and values": Candidate(lambda: _observe(counted, of_torch, values=True)),
        },
        baseline="forward",
        budget_s=budget_s,
        check=False,
    )
    return [
        {
            **{"dtype": dtype, "width": width, "length": length, "observing": name},
            **{"ratio": ratio.ratio, "low": ratio.ratio_low, "high": ratio.ratio_high},
            **{"forward_ms": 1e3 * ratio.baseline_median_s, "is_met": ratio.ratio <= MOST},
            "doubts": list(ratio.doubts),
        }
        for name, ratio in ratios.items()
    ]


def _observe(subject: ExaminedModel, dtype: torch.dtype, *, values: bool) -> object:
    observer, outcome = observe_call(
        subject, lambda: subject(*subject.tensors), subject.tensors, base=dtype, values=values
    )
    return findings_of(observer, outcome.outputs or (), None, broken=False), outcome
