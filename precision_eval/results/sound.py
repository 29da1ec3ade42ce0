"""The verdict on sound: does a fix differ from the reference by more than chance, and is it no worse than a margin?

Conventions: it is read from the records of the measure ``sound``: many short streams per condition, the fix and the
reference on the same passages with the same noise. A metric's margin is what one drop-out of 20 ms a second does to
it: a rung of the ladder of known degradations that moves every metric, and is heard as a light crackle.
``python -m validation sound`` measures the margins, and prints them beside those in force here. All metrics of all
fixes of a group are judged as one family (:mod:`precision_eval.stats.differences`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from precision_eval.core.figures import SoundFigures
from precision_eval.core.formatting import fixed
from precision_eval.stats.differences import (
    LEAST_UNITS,
    DifferenceDecision,
    DifferenceVerdict,
    PairedDifferences,
    judge_differences,
)


@dataclass(frozen=True, kw_only=True)
class SoundMetric:
    """One figure of a stream; `worse` is the sign of a change for the worse."""

    name: str
    title: str
    unit: str
    decimals: int
    worse: float
    margin: float

    def text(self, worse_by: float) -> str:
        """Write a change with its own sign and unit: ``+0.55 dB``, ``−0.052``."""
        number = fixed(worse_by * self.worse, decimals=self.decimals)
        return f"{'' if number.startswith('−') else '+'}{number}{self.unit}"

    def range_text(self, decision: DifferenceDecision) -> str:
        """Write a change with its interval: ``+0.55 dB [0.41, 0.69]``."""
        low, high = sorted((decision.low * self.worse, decision.high * self.worse))
        ends = ", ".join(fixed(end, decimals=self.decimals) for end in (low, high))
        return f"{self.text(decision.estimate)} [{ends}]"


VOICE_METRICS: tuple[SoundMetric, ...] = (
    SoundMetric(name="mel_mcd_db", title="MCD", unit=" dB", decimals=2, worse=1.0, margin=0.16),
    SoundMetric(name="log_spectral_distance_db", title="LSD", unit=" dB", decimals=2, worse=1.0, margin=0.21),
    SoundMetric(name="level_error_db", title="level error", unit=" dB", decimals=2, worse=1.0, margin=0.15),
    SoundMetric(name="phonemes_right", title="phonemes right", unit="", decimals=3, worse=-1.0, margin=0.007),
)
"""Each against the original speech of the passage; margins are mean changes, from ``results/sound/sound.json``."""

SOUND_METRICS: tuple[SoundMetric, ...] = (
    *VOICE_METRICS,
    SoundMetric(name="length_error", title="length error", unit=" %", decimals=2, worse=1.0, margin=2.0),
)
"""With what is heard of a case from outside alone, which has no phonemes to be right, and margins of its own: they are
measured on the reference's streams and stored with them."""


def metrics_text(values: Mapping[str, float]) -> str:
    """Write a change of each metric: ``MCD +0.19 dB, phonemes right −0.011``."""
    return ", ".join(f"{m.title} {m.text(values[m.name])}" for m in SOUND_METRICS if m.name in values)


@dataclass(frozen=True, kw_only=True)
class SoundVerdict:
    """What was heard of a condition: an answer per metric, and one for all.

    `verdict` is *worse* where any metric says so, else *no worse* where all do, else *better* where any does, else
    *undecided*. `reason` says why nothing was judged; there are then no `metrics`.
    """

    verdict: str
    metrics: Mapping[str, DifferenceDecision]
    streams: int = 0
    stream_s: float = 0.0
    reason: str = ""

    @property
    def no_worse(self) -> bool:
        """Whether every metric lies within its margin."""
        return _no_worse(self.metrics)

    @property
    def needed(self) -> int:
        """Streams after which a fix that does not differ would probably be called no worse, by every metric."""
        return max((decision.needed for decision in self.metrics.values()), default=0)

    @property
    def decisive(self) -> str:
        """The metrics that the verdict comes from; of *undecided*, those that are not known to be no worse."""
        parts = [
            f"{metric.title} {metric.range_text(decision)}"
            for metric in SOUND_METRICS
            if (decision := self.metrics.get(metric.name)) is not None
            and (decision.verdict == self.verdict if self.verdict in ("worse", "better") else not decision.no_worse)
        ]
        return ", ".join(parts)

    @property
    def detectable(self) -> dict[str, float]:
        """Per metric, the smallest change for the worse that would have been found in 80 % of repetitions."""
        return {name: decision.detectable for name, decision in self.metrics.items()}

    @property
    def doubt(self) -> str:
        """What speaks against a condition by sound, and what would decide; empty where it is no worse."""
        if self.verdict == "worse":
            return f"its sound is worse than the reference's: {self.decisive}"
        if self.verdict != "undecided":
            return ""
        if not self.metrics:
            return f"its sound is undecided: {self.reason}"
        return (
            f"its sound is undecided: {self.decisive}; {self.streams} streams of {self.stream_s:g} s would have told "
            f"{metrics_text(self.detectable)}; --set streams={self.needed} would probably decide"
        )

    def to_dict(self) -> dict[str, Any]:
        plain = asdict(self)
        return plain | {"no_worse": self.no_worse, "streams_to_decide": self.needed or None}


ONE_RECORDING = "one recording per fix is not enough seeds"

_Test = tuple[str, str]


def judged_sound(
    heard: Mapping[str, SoundFigures],
    reference: SoundFigures | None,
    noise_floor: SoundFigures | None,
    *,
    metrics: Sequence[SoundMetric] = SOUND_METRICS,
) -> dict[str, SoundVerdict]:
    """Judge the conditions of one group, fixes and controls, as one family against the reference."""
    if reference is None or noise_floor is None:
        return dict.fromkeys(heard, undecided("the reference's streams, or the noise floor's, were not spoken"))
    if reference.streams < LEAST_UNITS:
        return dict.fromkeys(heard, undecided(f"{reference.streams} streams; {LEAST_UNITS} or more are needed"))
    metrics = _judged(reference, metrics)
    if not metrics or _kind(reference, metrics) != _kind(noise_floor, metrics):
        return dict.fromkeys(heard, undecided("the reference's streams and the noise floor's are not alike"))
    unlike = {fix for fix, streams in heard.items() if _kind(streams, metrics) != _kind(reference, metrics)}
    tests = {
        (fix, metric.name): PairedDifferences(
            differences=_worse_by(metric, streams, reference),
            chance=_worse_by(metric, noise_floor, reference),
            margin=metric.margin,
        )
        for fix, streams in heard.items()
        for metric in metrics
        if fix not in unlike
    }
    decisions = judge_differences(tests)
    if not any(any(reference.heard[metric.name]) for metric in metrics):
        decisions = _beyond_margin(tests, decisions)
    verdicts = {}
    for fix in heard:
        if fix in unlike:
            verdicts[fix] = undecided("its streams are of another number or length than the reference's")
            continue
        by_metric = {metric.name: decisions[fix, metric.name] for metric in metrics}
        streams, length_s = reference.streams, reference.stream_s
        verdicts[fix] = SoundVerdict(verdict=_verdict(by_metric), metrics=by_metric, streams=streams, stream_s=length_s)
    return verdicts


def _beyond_margin(
    tests: Mapping[_Test, PairedDifferences], decisions: Mapping[_Test, DifferenceDecision]
) -> dict[_Test, DifferenceDecision]:
    """Judge a model that draws no noise: any fix differs from it, so the question is by more than the margin."""
    beyond = judge_differences(
        {key: replace(test, differences=np.asarray(test.differences) - test.margin) for key, test in tests.items()}
    )
    calm: dict[_Test, DifferenceDecision] = {}
    for key, decision in decisions.items():
        worse = beyond[key].verdict == "worse"
        verdict: DifferenceVerdict = "worse" if worse else "no worse" if decision.no_worse else "undecided"
        calm[key] = replace(decision, verdict=verdict, p=beyond[key].p, level=beyond[key].level)
    return calm


def undecided(reason: str = ONE_RECORDING) -> SoundVerdict:
    """Return the verdict on what cannot be judged."""
    return SoundVerdict(verdict="undecided", metrics={}, reason=reason)


def _judged(reference: SoundFigures, metrics: Sequence[SoundMetric]) -> tuple[SoundMetric, ...]:
    """Return the metrics that every stream of the reference has, with the margins that hold for its voice."""
    margins, heard = reference.margins, reference.heard
    adjusted = (replace(m, margin=margins.get(m.name, m.margin)) for m in metrics)
    return tuple(m for m in adjusted if len(heard.get(m.name, ())) == reference.streams and m.margin > 0.0)


def _kind(streams: SoundFigures, metrics: Sequence[SoundMetric]) -> tuple[Any, ...]:
    lengths = [len(streams.heard.get(metric.name, ())) for metric in metrics]
    return streams.streams, streams.stream_s, lengths


def _worse_by(metric: SoundMetric, streams: SoundFigures, reference: SoundFigures) -> np.ndarray:
    values, truth = (np.asarray(of.heard[metric.name], dtype=np.float64) for of in (streams, reference))
    return np.asarray(metric.worse * (values - truth))


def _no_worse(metrics: Mapping[str, DifferenceDecision]) -> bool:
    return bool(metrics) and all(decision.no_worse for decision in metrics.values())


def _verdict(metrics: Mapping[str, DifferenceDecision]) -> str:
    verdicts = {decision.verdict for decision in metrics.values()}
    if "worse" in verdicts:
        return "worse"
    if _no_worse(metrics):
        return "no worse"
    return "better" if "better" in verdicts else "undecided"
