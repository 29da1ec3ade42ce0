"""Fixes put on from outside against the same written into the source: ``python -m validation.written``.

One decoding step of attention with a KV cache: project, write one position, attend, project. Outputs are compared bit
by bit, and times as paired ratios of blocks over several processes, 1 being equal; the source is timed against itself
too, and what the fix does not pack is the same memory for all. A fix costs its calls through Python, so its share falls
with the length.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from precision_eval.core.environment import cpu_model
from precision_eval.core.files import read_json, to_json
from precision_eval.core.formatting import join
from precision_eval.core.table import Code, make_table, to_markdown
from precision_eval.fixes.catalog import fix_by_id
from precision_eval.measure.latency import Candidate, compare_latency

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


def compared(fix_id: str, length: int, *, budget_s: float, processes: int) -> dict[str, Any]:
    """Return whether both give the same bits, and the paired ratios to the source."""
    ratios = compare_latency(
        partial(candidates_of, fix_id, length), baseline="source", budget_s=budget_s, processes=processes,
        margin=WITHIN, check=False, threads=1,
    )  # fmt: skip
    row: dict[str, Any] = {"fix": fix_id, "length": length, "same_bits": has_same_bits(fix_id, length)}
    for name in ("outside", "source again"):
        row[name] = [ratios[name].ratio, ratios[name].ratio_low, ratios[name].ratio_high, ratios[name].verdict]
    return row


def markdown(path: Path) -> str:
    """Return the stored rows as a table, and whether all hold to the target."""
    stored = read_json(path)
    rows = stored["rows"]
    lines = [
        (Code(row["fix"]), f"{row['length']:,}", *(_ratio(row[name]) for name in ("outside", "source again")))
        for row in rows
    ]
    shown: dict[bool, list[str]] = {True: [], False: []}
    for row in rows:
        within = max(abs(end - 1.0) for end in row["outside"][1:3]) <= WITHIN
        shown[within].append(f"{row['fix']} at {row['length']:,}")
    same = sum(row["same_bits"] for row in rows)
    said = f"{same} of {len(rows)} give the bits of the source. Shown to be within {100 * WITHIN:g} %: "
    said += f"{join(shown[True]) or 'none'}; not shown: {join(shown[False]) or 'none'}."
    head = ("fix", "positions", "outside ÷ source [95 %]", "source ÷ itself [95 %]")
    machine = stored["machine"]
    measured = f"{machine['processor']}, torch {machine['torch']}, {machine['threads']} thread."
    return f"{to_markdown(make_table(head, lines))}\n\n{said} {measured}"


def _ratio(found: list[Any]) -> str:
    return "{:.3f} [{:.3f}, {:.3f}]".format(*found[:3])


def main() -> None:
    """Compare each fix at each length; print, and write where asked."""
    parser = argparse.ArgumentParser(prog="python -m validation.written", description=__doc__)
    parser.add_argument("--lengths", default="16384", help="positions of the cache, by commas")
    parser.add_argument("--budget", type=float, default=40.0, help="seconds of timing of each comparison")
    parser.add_argument("--processes", type=int, default=5, help="processes of each comparison")
    parser.add_argument("--out", type=Path, help="JSON file of the rows")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for fix_id in WRITTEN:
        for length in map(int, given.lengths.split(",")):
            rows.append(row := compared(fix_id, length, budget_s=given.budget, processes=given.processes))
            ratios = ", ".join(
                f"{name} {row[name][0]:.4f} [{row[name][1]:.4f}, {row[name][2]:.4f}] {row[name][3]}"
                for name in ("outside", "source again")
            )
            print(f"{fix_id} at {length}: {'same bits' if row['same_bits'] else 'OTHER BITS'}; {ratios}", flush=True)
    if given.out is not None:
        machine = {"processor": cpu_model(), "torch": torch.__version__, "threads": 1}
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(to_json({"machine": machine, "rows": rows}, what="the rows", indent=1) + "\n")
    sys.exit(0 if all(row["same_bits"] for row in rows) else 1)


if __name__ == "__main__":
    main()
