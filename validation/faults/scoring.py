"""From trial lines to rates: detection by effect size, false alarms, hardest faults.

a fault trial counts where the fault moved the output (effect > 0). Rates come with Wilson's 95 %
intervals, which take the trials for independent; trials of one fault are alike, so read them as a lower bound of the
uncertainty. Rules are named as in :mod:`~validation.faults.trials`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_eval.stats import wilson_interval
from validation.faults.trials import POOL, POOLED, RULES, Key, from_bits

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Rate:
    """A proportion of trials."""

    hits: int
    trials: int

    @property
    def value(self) -> float:
        """In [0, 1]; NaN of no trial."""
        return self.hits / self.trials if self.trials else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval; (0, 1) of no trial."""
        return wilson_interval(self.value, self.trials) if self.trials else (0.0, 1.0)

    def __str__(self) -> str:
        if not self.trials:
            return "no trial"
        low, high = self.interval
        digits = 2 if self.value < 0.02 else 1
        found, below, above = (f"{100 * x:.{digits}f}" for x in (self.value, low, high))
        return f"{found} % [{below}, {above}] of {self.trials:,}"


@dataclass(frozen=True)
class Judgements:
    """All trials of one kind, one entry per seed (or per pool, for the pooled rule)."""

    id: NDArray[np.str_]
    family: NDArray[np.str_]
    dtype: NDArray[np.str_]
    held_out: Bools
    effect: NDArray[np.float64]
    alarm: dict[str, Bools]

    def rate(self, rule: str, where: Bools | None = None) -> Rate:
        """How often `rule` raised an alarm among the trials at `where`, or all of them."""
        alarms = self.alarm[rule] if where is None else self.alarm[rule][where]
        return Rate(int(alarms.sum()), len(alarms))

    def between(self, low: float, high: float) -> Bools:
        """Trials with an effect in [low, high)."""
        return (self.effect >= low) & (self.effect < high) & (self.effect > 0)

    def missed(self, rule: str, where: Bools) -> list[tuple[str, Rate]]:
        """Rate of each id that was not always caught at `where`, lowest first."""
        names = sorted(set(self.id[where].tolist()))
        rates = [(name, self.rate(rule, where & (self.id == name))) for name in names]
        missed = [pair for pair in rates if pair[1].value < 1.0]
        return sorted(missed, key=lambda pair: (pair[1].value, -pair[1].trials))


def collect(lines: Sequence[dict[str, Any]], kind: str, *, pooled: bool = False) -> Judgements:
    """Bring the lines of a kind together."""
    size, rules = (POOL, (POOLED,)) if pooled else (1, RULES)
    kept = [(Key.of(line), line) for line in lines if Key.of(line).kind == kind]
    counts = [key.seeds // size for key, _ in kept]

    def repeated(values: list[Any], dtype: type) -> NDArray[Any]:
        return np.repeat(np.array(values, dtype=dtype), counts)

    def joined(parts: list[Any], dtype: type) -> NDArray[Any]:
        return np.concatenate([np.empty(0, dtype), *parts]).astype(dtype)

    effects = [np.asarray(line.get("effect", [0.0] * key.seeds)) for key, line in kept]
    return Judgements(
        id=repeated([key.id for key, _ in kept], np.str_),
        family=repeated([key.family for key, _ in kept], np.str_),
        dtype=repeated([key.dtype for key, _ in kept], np.str_),
        held_out=repeated([line["held_out"] for _, line in kept], bool),
        # of a pool, the root of the mean square
        effect=joined([np.sqrt(np.square(effect).reshape(-1, size).mean(1)) for effect in effects], float),
        alarm={rule: joined([from_bits(line["alarms"][rule]) for _, line in kept], bool) for rule in rules},
    )
