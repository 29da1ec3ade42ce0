"""The rule: which statistic lies beyond what honest computations show, and what the rule cannot see.

Conventions: a statistic x is held to its honest range in t = log(max(x, 0) + offset). Its *centre* is a quadratic in
what the range depends on (see :func:`covariates`), fitted to the 98 % quantile of honest computations; its *scale* is
the mean excess beyond it. The *score* (t − centre) / scale is then in units that all statistics share, and one limit on
the largest of them keeps the false alarms of all together at the calibrated rate. Ranges are kept by output dtype and
by whether there are at least :data:`MANY_ROWS` rows. Outside the calibrated range of a covariate its end is taken.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from precision_eval.core.errors import IntegrityError
from precision_eval.measure.assess.statistics import STATISTICS, Measured, Statistic

MANY_ROWS = 64
FEWEST_ROWS, FEWEST_CHANNELS = 4, 16
UNCALIBRATED = 3.0
FILE = "thresholds.json"


def transformed(statistic: Statistic, value: float) -> float:
    """The scale on which ranges are held."""
    return math.log(max(value, 0.0) + statistic.offset)


def covariates(statistic: Statistic, of: Measured) -> list[float]:
    """What the honest range of a statistic depends on."""
    if statistic.kind == "fixed":
        return []
    rows, headroom = math.log(of.rows), math.log(of.headroom)
    if statistic.kind == "level":
        return [headroom, math.log(of.kurtosis + 1e-6), math.log(of.row_spread + 0.1), rows]
    return [headroom, math.log(of.alpha + 1e-3), transformed(statistic, of.own[statistic.name]), rows]


def quadratic(x: Sequence[float]) -> list[float]:
    """1, each x, and each product of two."""
    return [1.0, *x, *(x[i] * x[j] for i in range(len(x)) for j in range(i, len(x)))]


@dataclass(frozen=True)
class Range:
    """Honest range of one statistic."""

    coefficients: tuple[float, ...]
    scale: float
    low: tuple[float, ...]
    high: tuple[float, ...]

    def centre(self, x: Sequence[float]) -> float:
        """The 98 % quantile of honest computations, in t."""
        inside = [min(max(v, low), high) for v, low, high in zip(x, self.low, self.high, strict=True)]
        return sum(c * v for c, v in zip(self.coefficients, quadratic(inside), strict=True))


@dataclass(frozen=True)
class Thresholds:
    """Honest ranges for one dtype and one class of sizes."""

    limit: float
    ranges: Mapping[str, Range]

    def scores(self, of: Measured) -> dict[str, float]:
        """Score of each statistic."""
        result = {}
        for statistic in STATISTICS:
            held = self.ranges[statistic.name]
            excess = transformed(statistic, of.found[statistic.name]) - held.centre(covariates(statistic, of))
            result[statistic.name] = excess / held.scale
        return result

    def limit_of(self, statistic: Statistic, of: Measured) -> float:
        """Largest value of a statistic that is as expected of the format, in its own units."""
        held = self.ranges[statistic.name]
        at = held.centre(covariates(statistic, of)) + self.limit * held.scale
        return math.exp(min(at, 700.0)) - statistic.offset


@cache
def _shipped() -> dict[str, Thresholds]:
    text = resources.files(__package__).joinpath(FILE).read_text(encoding="utf-8")
    return parse(json.loads(text))


def parse(data: Mapping[str, Any]) -> dict[str, Thresholds]:
    """Read the content of the thresholds' file."""
    names = {statistic.name for statistic in STATISTICS}
    result = {}
    for key, entry in data["thresholds"].items():
        if set(entry["ranges"]) != names:
            odd = ", ".join(sorted(set(entry["ranges"]) ^ names))
            raise IntegrityError(
                f"{FILE} and the statistics do not agree for {key} ({odd}); write it again with "
                "`python -m validation.faults.calibration`"
            )
        ranges = {
            name: Range(tuple(r["coefficients"]), r["scale"], tuple(r["low"]), tuple(r["high"]))
            for name, r in entry["ranges"].items()
        }
        result[key] = Thresholds(entry["limit"], ranges)
    return result


def thresholds_for(dtype_name: str, rows: int, channels: int) -> Thresholds:
    """Shipped thresholds; with a limit three times as high for tensors smaller than any that were calibrated."""
    found = _shipped()[key_of(dtype_name, rows)]
    if rows >= FEWEST_ROWS and channels >= FEWEST_CHANNELS:
        return found
    return replace(found, limit=UNCALIBRATED * found.limit)


def key_of(dtype_name: str, rows: int) -> str:
    """Name of the thresholds for a dtype and a number of rows."""
    return f"{dtype_name}/{'many' if rows >= MANY_ROWS else 'few'}"
