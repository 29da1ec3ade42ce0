"""Which trials an experiment of a size holds, and in which order.

Conventions: a *cell* is a tool, a load and an injected slowdown, with a number of trials; its trials go round the
calls that allow that slowdown. The order is drawn once from a fixed seed so that, stopped anywhere, every cell of a
tool is about equally far (and this suite's cells are :data:`OURS_AHEAD` times as far as the rivals'), with tools and
calls mixed in time. Trials already on file are left out; the order of the others stays. A campaign may choose some
tools, loads and slowdowns, and how many trials of each: the first so many of the same trials.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from precision_eval.core.errors import unknown_name
from validation.frame import Size
from validation.latency.calls import CALLS, DELTAS
from validation.latency.load import LOADS
from validation.latency.rivals import TOOLS

BUDGET_S = {"quiet": 2.0, "bursty": 4.0}
"""Seconds for a pair, the same for every tool."""

OURS_AHEAD = 2.5

_ORDER_SEED = 20260101
_OURS = "ours"


@dataclass(frozen=True, kw_only=True, order=True)
class TrialSpec:
    """What a trial depends on."""

    tool: str
    load: str
    call: str
    delta: float
    seed: int

    @property
    def key(self) -> str:
        """Name of the trial on file."""
        return f"{self.tool}/{self.load}/{self.call}/{self.delta:g}/{self.seed}"

    @property
    def budget_s(self) -> float:
        """Seconds for the pair."""
        return BUDGET_S[self.load]


def parse_key(key: str) -> TrialSpec:
    """Read a trial's key back."""
    tool, load, call, delta, seed = key.split("/")
    return TrialSpec(tool=tool, load=load, call=call, delta=float(delta), seed=int(seed))


_POWER = DELTAS[1:]
_OURS_FULL = {load: {0.0: same} | dict.fromkeys(_POWER, 120) for load, same in (("quiet", 400), ("bursty", 1000))}
"""Most of the time goes where errors are likeliest: equal calls under load."""
_RIVALS_FULL = {0.0: 60} | dict.fromkeys(_POWER, 30)
_QUICK = {True: {0.0: 8, 0.005: 3, 0.01: 3, 0.02: 3, 0.05: 4}, False: {0.0: 1, 0.01: 1, 0.05: 1}}


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Part of a size, by name: all where none is named, and as many trials as the size has where 0 are asked for."""

    tools: tuple[str, ...] = ()
    loads: tuple[str, ...] = ()
    deltas: tuple[str, ...] = ()
    equal: int = 0
    slower: int = 0

    def __post_init__(self) -> None:
        known = {"tool": TOOLS, "load": LOADS, "slowdown": [f"{delta:g}" for delta in DELTAS]}
        for (kind, names), own in zip(known.items(), (self.tools, self.loads, self.deltas), strict=True):
            for name in own:
                if name not in names:
                    raise unknown_name(kind, name, names)

    def has(self, tool: str, load: str, delta: float) -> bool:
        """Say whether a cell is chosen."""
        chosen = ((tool, self.tools), (load, self.loads), (f"{delta:g}", self.deltas))
        return all(not names or name in names for name, names in chosen)

    def count(self, size: Size, tool: str, load: str, delta: float) -> int:
        """Return how many trials of a cell are chosen."""
        return (self.slower if delta else self.equal) or trials_per_cell(size, tool, load, delta)


def trials_per_cell(size: Size, tool: str, load: str, delta: float) -> int:
    """Return how many trials a cell has, over all its calls."""
    if size == "quick":
        return _QUICK[tool == _OURS].get(delta, 0)
    return (_OURS_FULL[load] if tool == _OURS else _RIVALS_FULL)[delta]


def schedule(size: Size, chosen: Chosen = Chosen()) -> list[TrialSpec]:
    """Return every trial of a size that is chosen, in the order in which they are to run."""
    cells = [cell for cell in product(TOOLS, LOADS, DELTAS) if chosen.has(*cell)]
    return [spec for _, spec in sorted(ranked for cell in cells for ranked in _cell(*cell, chosen.count(size, *cell)))]


def _cell(tool: str, load: str, delta: float, count: int) -> Iterator[tuple[float, TrialSpec]]:
    """Yield the trials of a cell, each with its place in the order: a fraction done, with seeded jitter."""
    calls = [spec.name for spec in CALLS if delta in spec.deltas]
    rng = random.Random(_ORDER_SEED + zlib.crc32(f"{tool}/{load}/{delta}".encode()))
    behind = 1.0 if tool == _OURS else OURS_AHEAD
    first = rng.randrange(len(calls))  # cells with fewer trials than calls do not all take the same one
    for seed in range(count):
        place = behind * (seed + rng.random()) / count
        yield place, TrialSpec(tool=tool, load=load, call=calls[(first + seed) % len(calls)], delta=delta, seed=seed)
