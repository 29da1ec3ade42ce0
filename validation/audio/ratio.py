"""One figure of the bench: what was found, between what and what, and the target."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import binom


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """One figure of the bench."""

    name: str
    value: float
    low: float
    high: float
    most: float | None = None
    least: float | None = None
    rounds: int = 0
    unit: str = "×"
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is met."""
        if self.most is not None:
            return bool(self.value <= self.most)
        return None if self.least is None else bool(self.value >= self.least)

    def to_dict(self) -> dict[str, Any]:
        """As plain data, targets and whether they are met included; NaN is None."""
        return {
            name: None if isinstance(value, float) and np.isnan(value) else value
            for name, value in (asdict(self) | {"met": self.met}).items()
        }


def ratio_of(numerator: np.ndarray, denominator: np.ndarray, *, name: str, most: float | None, note: str = "") -> Ratio:
    """Median of paired ratios, with the 95 % interval of its ranks; under six rounds that is the range."""
    ratios = np.sort(numerator / denominator)
    n = len(ratios)
    lower = max(int(binom.ppf(0.025, n, 0.5)) - 1, 0)
    return Ratio(
        name=name,
        value=float(np.median(ratios)),
        low=float(ratios[lower]),
        high=float(ratios[n - 1 - lower]),
        most=most,
        rounds=n,
        note=note,
    )
