"""The course of a long recording, from the figures of its minutes (:mod:`precision_eval.measure.minutes`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from precision_eval.results.sound import SOUND_METRICS, SoundMetric

MISSED = SoundMetric(name="speech_missed", title="speech missed", unit="", decimals=3, worse=1.0, margin=0.01)
MINUTE_METRICS: tuple[SoundMetric, ...] = (
    *SOUND_METRICS,
    MISSED,
    replace(MISSED, name="whisper_words_skipped", title="words skipped (Whisper)"),
    replace(MISSED, name="whisper_words_doubled", title="words doubled (Whisper)"),
)
LEAST_MINUTES = 3  # for a slope with an interval

Minutes = Mapping[str, Sequence[Any]]
"""Figures of each minute, and its ``flags``."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """One metric over a recording; a minute without a value is in `n_missing`, and in nothing else."""

    metric: SoundMetric
    mean: float
    slope_per_hour: float
    slope_low: float
    slope_high: float
    first_third: float
    last_third: float
    worst: float
    worst_minute: int
    n_missing: int
    n_minutes: int

    @property
    def mean_text(self) -> str:
        """Mean, with how many minutes have no value."""
        missing = f", {self.n_missing} of {self.n_minutes} minutes without" if self.n_missing else ""
        return f"{self._plain(self.mean)}{missing}"

    @property
    def slope_text(self) -> str:
        """Slope an hour with its 95 % interval."""
        return f"{self._signed(self.slope_per_hour)} [{self._signed(self.slope_low)}, {self._signed(self.slope_high)}]"

    @property
    def thirds_text(self) -> str:
        """First third → last third."""
        return f"{self._plain(self.first_third)} → {self._plain(self.last_third)}"

    @property
    def worst_text(self) -> str:
        """The worst minute's value, and which it is, from 1."""
        return f"{self._plain(self.worst)} (minute {self.worst_minute + 1})"

    def _signed(self, value: float) -> str:
        return self.metric.text(value * self.metric.worse).removesuffix(self.metric.unit)

    def _plain(self, value: float) -> str:
        return f"{value:.{self.metric.decimals}f}{self.metric.unit}"


def courses_of(minutes: Minutes) -> list[Course]:
    """Return the courses of the metrics that enough minutes have."""
    from audio_metrics import theil_sen

    courses = []
    for metric in MINUTE_METRICS:
        values = np.array([np.nan if value is None else value for value in minutes.get(metric.name, ())], dtype=float)
        known = np.flatnonzero(np.isfinite(values))
        if len(known) < LEAST_MINUTES:
            continue
        slope, low, high = (60.0 * end for end in theil_sen(known.astype(float), values[known]))
        third = len(values) // 3
        worst = int(known[np.argmax(metric.worse * values[known])])
        courses.append(
            Course(
                metric=metric,
                mean=float(values[known].mean()),
                slope_per_hour=slope,
                slope_low=low,
                slope_high=high,
                first_third=_mean(values[:third]),
                last_third=_mean(values[-third:]),
                worst=float(values[worst]),
                worst_minute=worst,
                n_missing=len(values) - len(known),
                n_minutes=len(values),
            )
        )
    return courses


def _mean(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def flags_text(minutes: Minutes) -> str:
    """Say which minutes have which flags: ``silent: 3, 4; stuck: 12``; ``none`` where there are none."""
    by_kind: dict[str, list[int]] = {}
    for index, kinds in enumerate(minutes.get("flags", ())):
        for kind in kinds or ():
            by_kind.setdefault(kind, []).append(index + 1)
    return "; ".join(f"{kind}: {_ranges(numbers)}" for kind, numbers in by_kind.items()) or "none"


def _ranges(numbers: Sequence[int]) -> str:
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in zip(starts, ends, strict=True))
