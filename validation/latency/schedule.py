"""Which trials the experiment holds, and in which order.

A *cell* is a tool, a load and an injected slowdown; its trials go round the calls that allow that slowdown. The order
is drawn from fixed seeds so that, stopped anywhere, every cell is about equally far, and tools and calls are mixed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from validation.latency.calls import CALLS, DELTAS
from validation.latency.load import LOADS

OURS = "ours"
BUDGET_S = {"quiet": 2.0, "bursty": 4.0}  # seconds for a pair, the same for every tool
RIVALS_SHARE = 4  # a rival gets every fourth trial: what it says is only compared, without a target


@dataclass(frozen=True, kw_only=True, order=True)
class TrialSpec:
    tool: str
    load: str
    call: str
    delta: float
    seed: int

    @property
    def key(self) -> str:
        return f"{self.tool}/{self.load}/{self.call}/{self.delta:g}/{self.seed}"

    @property
    def budget_s(self) -> float:
        return BUDGET_S[self.load]


def parse_key(key: str) -> TrialSpec:
    tool, load, call, delta, seed = key.split("/")
    return TrialSpec(tool=tool, load=load, call=call, delta=float(delta), seed=int(seed))


def schedule(tools: Sequence[str], *, equal: int, slower: int) -> list[TrialSpec]:
    """Return the trials in their order: so many of each cell of equal calls and of each of slowed ones."""
    placed = []
    for tool, load, delta in product(tools, LOADS, DELTAS):
        rng = random.Random(f"{tool}/{load}/{delta:g}")
        count = slower if delta else equal
        if tool != OURS:
            count = -(-count // RIVALS_SHARE)
        calls = [call.name for call in CALLS if delta in call.deltas]
        first = rng.randrange(len(calls))  # cells with fewer trials than calls do not all take the same call
        for seed in range(count):
            call = calls[(first + seed) % len(calls)]
            spec = TrialSpec(tool=tool, load=load, call=call, delta=delta, seed=seed)
            placed.append(((seed + rng.random()) / count, spec))
    return [spec for _, spec in sorted(placed)]
