"""What is said of a metric, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from audio_metrics.longform import Direction


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric.

    Attributes
    ----------
    name : str
        Also the name of its function and of its field in results.
    unit : str
        Empty for a pure number.
    low, high : float
        Range of possible values.
    direction : {"lower", "higher"} or None
    aligned : bool
    n_signals : int
    formula : str
    source : str
        Where the formula is from.
    function : callable
        The plain function on arrays.
    takes : {"signal", "tokens"}
        What the arrays hold.
    extra : str
        The extra of the package that brings a library it needs; empty for none.
    """

    name: str
    unit: str
    low: float
    high: float
    direction: Direction | None
    aligned: bool
    n_signals: int
    formula: str
    source: str
    function: Callable[..., float]
    takes: Literal["signal", "tokens"] = "signal"
    extra: str = ""
