"""Fixes put on from outside against the same written into the source.

One decoding step of attention with a KV cache: project, write one position, attend, project. Outputs are compared bit
by bit, and times as paired ratios of blocks over several processes, 1 being equal; the source is timed against itself
too, and what the fix does not pack is the same memory for all. A fix costs its calls through Python, so its share falls
with the length.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from precision_eval.core.environment import cpu_model
from precision_eval.fixes.catalog import fix_by_id
from precision_eval.measure.latency import Candidate, compare_latency
from validation.frame import Data, Experiment, Figure, Options, Trial, each
from validation.report import spanned

HEADS, WIDTH, POSITION = 8, 64, 3
WITHIN = 0.01


class Step(nn.Module):
    """As it ships: float32 weights, a float16 cache, which attention meets with a float32 query."""

    k_cache: torch.Tensor
    v_cache: torch.Tensor

    def __init__(self, length: int, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.projection = nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH, bias=False)
        self.output = nn.Linear(HEADS * WIDTH, HEADS * WIDTH, bias=False)
        for name in ("k_cache", "v_cache"):
            self.register_buffer(name, torch.randn(1, HEADS, length, WIDTH).half())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Decode one step; x is (1, 1, HEADS · WIDTH)."""
        q, k, v = self.projection(x).view(1, 3, HEADS, 1, WIDTH).unbind(1)
        self.k_cache[:, :, POSITION : POSITION + 1] = k
        self.v_cache[:, :, POSITION : POSITION + 1] = v
        attended = F.scaled_dot_product_attention(q, self.k_cache, self.v_cache)
        return self.output(attended.reshape(1, 1, -1))


def _in_int8(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes and a scale for each row of the last dimension."""
    values = values.float()
    scale = values.abs().amax(-1, keepdim=True) / 127
    codes = (values / torch.where(scale > 0, scale, torch.ones_like(scale))).clamp(-127, 127).round()
    return codes.to(torch.int8), scale


class Int8Cache(Step):
    """``cache_int8_token`` written into the source."""

    def __init__(self, length: int, seed: int = 0) -> None:
        super().__init__(length, seed)
        self.k_codes, self.k_scale = _in_int8(self.k_cache)
        self.v_codes, self.v_scale = _in_int8(self.v_cache)
        del self.k_cache, self.v_cache

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Decode one step."""
        q, k, v = self.projection(x).view(1, 3, HEADS, 1, WIDTH).unbind(1)
        at = slice(POSITION, POSITION + 1)
        self.k_codes[:, :, at], self.k_scale[:, :, at] = _in_int8(k.half())
        self.v_codes[:, :, at], self.v_scale[:, :, at] = _in_int8(v.half())
        keys = self.k_codes.to(torch.float32).mul_(self.k_scale).to(q.dtype)
        values = self.v_codes.to(torch.float32).mul_(self.v_scale).to(q.dtype)
        attended = F.scaled_dot_product_attention(q, keys, values)
        return self.output(attended.reshape(1, 1, -1))


class LayerCast(Step):
    """``layercast`` written into the source: matrices in bfloat16, all else in float32."""

    def __init__(self, length: int, seed: int = 0) -> None:
        super().__init__(length, seed)
        self.projection.bfloat16()
        self.output.bfloat16()
        self.k_cache, self.v_cache = self.k_cache.float(), self.v_cache.float()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Decode one step."""
        q, k, v = F.linear(x, self.projection.weight.float()).view(1, 3, HEADS, 1, WIDTH).unbind(1)
        self.k_cache[:, :, POSITION : POSITION + 1] = k
        self.v_cache[:, :, POSITION : POSITION + 1] = v
        attended = F.scaled_dot_product_attention(q, self.k_cache, self.v_cache)
        return F.linear(attended.reshape(1, 1, -1), self.output.weight.float())


class Int8Weights(Step):
    """``weights_int8`` written into the source: int8 with a scale per row, all else in bfloat16."""

    def __init__(self, length: int, seed: int = 0) -> None:
        super().__init__(length, seed)
        self.bfloat16()
        self.codes = [_in_int8(layer.weight.detach()) for layer in (self.projection, self.output)]
        del self.projection, self.output

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Decode one step."""
        first, last = (codes.to(torch.float32).mul_(scale).to(x.dtype) for codes, scale in self.codes)
        q, k, v = F.linear(x, first).view(1, 3, HEADS, 1, WIDTH).unbind(1)
        self.k_cache[:, :, POSITION : POSITION + 1] = k
        self.v_cache[:, :, POSITION : POSITION + 1] = v
        attended = F.scaled_dot_product_attention(q, self.k_cache, self.v_cache)
        return F.linear(attended.reshape(1, 1, -1), last)


WRITTEN: dict[str, type[Step]] = {
    "cache_int8_token": Int8Cache,
    "layercast": LayerCast,
    "weights_int8": Int8Weights,
}


_HELD = ExitStack()
"""Keeps the fixes on their models for as long as the process lives."""


def candidates_of(fix_id: str, length: int) -> dict[str, Candidate]:
    """Build the source, the same once more, and the model that ships with the fix on it."""
    x = torch.randn(1, 1, HEADS * WIDTH, generator=torch.Generator().manual_seed(1))
    source, same, shipped = (
        kind(length).eval().requires_grad_(False) for kind in (WRITTEN[fix_id], WRITTEN[fix_id], Step)
    )
    applied = fix_by_id(fix_id).applied(shipped)
    _HELD.enter_context(applied.stored())
    for written in (source, same):  # one cache in memory for all three: where a copy lies there moves times by percents
        written._buffers |= {name: cache for name, cache in shipped._buffers.items() if name in written._buffers}
    (inputs,) = applied.prepare((x,))
    given = x.to(inputs.dtype)
    return {
        "source": Candidate(partial(source, given)),
        "outside": Candidate(partial(applied, inputs), applied.agreeing),
        "source again": Candidate(partial(same, given)),
    }


def has_same_bits(fix_id: str, length: int) -> bool:
    """Say whether outside and source give the same bits."""
    candidates = candidates_of(fix_id, length)
    with candidates["outside"].block():
        outside: Any = candidates["outside"].call()
        source: Any = candidates["source"].call()
    return torch.equal(outside, source)


def compared(fix_id: str, length: int, budget_s: float, processes: int) -> Data:
    """Return whether both give the same bits, and the paired ratios to the source."""
    torch.set_num_threads(1)
    ratios = compare_latency(
        partial(candidates_of, fix_id, length), baseline="source", budget_s=budget_s, processes=processes,
        margin=WITHIN, check=False, threads=1,
    )  # fmt: skip
    row: Data = {"fix": fix_id, "length": length, "same_bits": has_same_bits(fix_id, length)}
    for name in ("outside", "source again"):
        row[name] = [ratios[name].ratio, ratios[name].ratio_low, ratios[name].ratio_high, ratios[name].verdict]
    return row


def _trials(options: Options) -> list[Trial]:
    effort = (options["budget_s"], options["processes"])
    here = f"{effort[0]:g}s/{effort[1]}p/{torch.__version__}/{cpu_model()}"
    places = product(WRITTEN, map(int, options["lengths"]))
    return [Trial(f"{fix}/{length}/{here}", (fix, length, *effort)) for fix, length in places]


def _figures(content: Data) -> list[Figure]:
    """The target is met where the whole interval lies within it, and the bits are the source's."""
    figures = []
    for row in content["rows"]:
        bits = "the same bits" if row["same_bits"] else "OTHER BITS"
        met = row["same_bits"] and max(abs(end - 1.0) for end in row["outside"][1:3]) <= WITHIN
        name = f"{row['fix']}, {row['length']:,} positions: outside ÷ source"
        columns = {"source ÷ itself": spanned(_ratio(row["source again"]))}
        target = f"within {100 * WITHIN:g} %, the same bits"
        figures.append(Figure(name, f"{_ratio(row['outside'])}; {bits}", target, met, columns))
    return figures


def _ratio(found: list[Any]) -> str:
    return "{:.3f} [{:.3f}, {:.3f}]".format(*found[:3])


def _notes(content: Data) -> list[str]:
    machine = content.get("machine")  # of a summary that has no environment
    return [f"{machine['processor']}, torch {machine['torch']}, {machine['threads']} thread."] if machine else []


EXPERIMENT = Experiment(
    name="written",
    title="fixes put on from outside against the same written into the source",
    trials=_trials,
    run=each(lambda spec: compared(*spec)),
    figures=_figures,
    summary=lambda lines, options: {"rows": lines},
    notes=_notes,
    settings={"lengths": (("2048",), ("16384", "65536")), "budget_s": (4.0, 40.0), "processes": (2, 5)},
)
