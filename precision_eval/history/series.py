"""Values of one metric over torch versions or commits, the noise they carry, and drift over several seeds.

Conventions: a *position* is a torch version or the first eight characters of a commit. Drift has a sample per seed;
next to older results of one seed lies ``drift-seeds.jsonl``, a line per torch version, fix and size with the drift of
each seed (it ends in ``.jsonl`` because asv takes every ``.json`` below its results for one of them). Two versions are
compared seed by seed: weights and inputs are the same on both sides, so the scatter of the log-ratios is what chance in
the rounding makes, and their mean has Student's interval. Only seeds that both sides have count, at least
``LEAST_SEEDS`` of them, and only where the benchmark's definition is the one of the results.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_eval.core.errors import ParameterError
from precision_eval.core.files import TrialFile, worked_out_from
from precision_eval.core.formatting import grouped
from precision_eval.results.asv import AsvPoint, Key, ResultSet
from precision_eval.stats import student_quantile
from precision_eval.stats.robust import PRIOR_DEGREES, locations, padded, pair_scale

PAIRED = ("latency_ratio", "latency_to_anchor")
EXACT: Mapping[str, float] = {"drift": 1.5, "peak_bytes": 1.01, "stored_bytes": 1.01}
"""Metric to the factor from which a change is reported. Drift is of one seed: where nothing but the rounding's luck
changed, eight seeds gave factors of 0.92 to 1.28 (metavoice-decode-float32 between 2.8.0 and 2.9.1); 1.5 was chosen
after seeing those, to be beyond what luck makes. Smaller ones need several seeds (:func:`seed_step`), whose interval
must lie beyond ``SEEDED``. Bytes: an allocator rounds to pages."""

SEEDED = 1.1
"""Factor that the interval of a drift over several seeds must lie beyond; smaller changes are shown and not called."""

CONFIDENCE = 0.95
SEEDS_NAME = "drift-seeds.jsonl"
LEAST_SEEDS = 5


@dataclass(frozen=True, kw_only=True)
class Keyed:
    """What is of one metric of one fix."""

    mode: str
    case: str
    metric: str
    fix: str
    size: str

    @property
    def key(self) -> Key:
        """Mode, case, metric, fix, size."""
        return (self.mode, self.case, self.metric, self.fix, self.size)


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Spread of one process, as a standard deviation of the logarithm (0.01 is one per cent)."""

    scale: float
    degrees_of_freedom: float
    own_scale: float
    prior_scale: float | None


@dataclass(frozen=True, kw_only=True)
class SeriesPoint:
    """One position of a series."""

    position: str
    state: str
    value: float | None
    samples: tuple[float, ...]
    interval: tuple[float, float] | None
    benchmark_version: str
    visits: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MetricSeries(Keyed):
    """One metric of one fix over all positions, absent ones included.

    `kind` is ``"paired"``, ``"exact"``, ``"status"`` or ``"other"``; `noise` is None where the metric has none, or too
    few samples were kept.
    """

    unit: str
    kind: str
    points: tuple[SeriesPoint, ...]
    noise: Noise | None

    @property
    def measured(self) -> tuple[SeriesPoint, ...]:
        """The points that hold a finite value."""
        return tuple(point for point in self.points if point.value is not None and math.isfinite(point.value))

    @property
    def runs(self) -> tuple[tuple[SeriesPoint, ...], ...]:
        """The measured points, cut wherever the benchmark was defined anew."""
        cut: list[list[SeriesPoint]] = []
        for point in self.measured:
            if not cut or cut[-1][-1].benchmark_version != point.benchmark_version:
                cut.append([])
            cut[-1].append(point)
        return tuple(map(tuple, cut))


def named(key: Key) -> dict[str, Any]:
    """Return the parts of a key by their names."""
    return dict(zip(("mode", "case", "metric", "fix", "size"), key, strict=True))


def in_turn(points: Iterable[SeriesPoint]) -> bool:
    """Say whether points were measured in rounds: all of the first before any of the second, and so on."""
    visits = [point.visits for point in points]
    rounds = {len(times) for times in visits}
    if len(rounds) != 1 or rounds <= {0, 1}:
        return False
    by_round = list(zip(*visits, strict=True))
    return all(max(earlier) < min(later) for earlier, later in pairwise(by_round))


def kind_of(metric: str) -> str:
    """Return ``"paired"``, ``"exact"``, ``"status"`` or ``"other"``."""
    if metric in PAIRED:
        return "paired"
    return "exact" if metric in EXACT else "status" if metric == "status" else "other"


def build_series(sets: Sequence[ResultSet], positions: Sequence[str]) -> tuple[MetricSeries, ...]:
    """Return every series of some result sets, with its noise."""
    keys = sorted({key for result in sets for key, point in result.points.items() if point.state != "absent"})
    bare = [_bare(key, [result.points.get(key) for result in sets], positions) for key in keys]
    return tuple(_with_noise(bare))


def _bare(key: Key, points: Sequence[AsvPoint | None], positions: Sequence[str]) -> MetricSeries:
    """Return a series before its noise is known."""
    return MetricSeries(
        **named(key),
        unit=next((point.unit for point in reversed(points) if point and point.unit), ""),
        kind=kind_of(key[2]),
        points=tuple(
            SeriesPoint(
                position=position,
                state=point.state if point else "absent",
                value=point.value if point else None,
                samples=point.samples if point else (),
                interval=None,
                benchmark_version=point.benchmark_version if point else "",
                visits=point.visits if point else (),
            )
            for position, point in zip(positions, points, strict=True)
        ),
        noise=None,
    )


def _with_noise(series: Iterable[MetricSeries]) -> list[MetricSeries]:
    """Give each paired series its noise, drawn towards that of the other fixes, and its points their intervals."""
    series = list(series)
    scales = {member.key: _own_scale(member) for member in series if member.kind == "paired"}
    groups = grouped(
        ((mode, case, metric, size), own[0])
        for (mode, case, metric, _, size), own in scales.items()
        if own is not None and own[0] > 0.0
    )
    result = []
    for member in series:
        own = scales.get(member.key)
        if own is not None:
            peers = groups.get((member.mode, member.case, member.metric, member.size), [])
            noise = _noise(*own, float(np.median(peers)) if len(peers) > 1 and own[0] > 0.0 else None)
            member = replace(member, noise=noise, points=tuple(_located(point, noise) for point in member.points))
        result.append(member)
    return result


def _noise(own: float, degrees: float, prior: float | None) -> Noise:
    """Draw a series' own spread towards that of the others; a ratio to itself stays without noise."""
    if prior is None:
        return Noise(scale=own, degrees_of_freedom=degrees, own_scale=own, prior_scale=None)
    total = degrees + PRIOR_DEGREES
    scale = math.sqrt((degrees * own**2 + PRIOR_DEGREES * prior**2) / total)
    return Noise(scale=scale, degrees_of_freedom=total, own_scale=own, prior_scale=prior)


def _own_scale(series: MetricSeries) -> tuple[float, float] | None:
    """Return a paired series' own noise and its degrees of freedom; None without two processes anywhere."""
    logs = [np.log(_positive(series, point)) for point in series.measured if point.samples]
    if all(log.size < 2 for log in logs):
        return None
    return float(pair_scale(padded(logs)[None])[0]), float(sum(sample.size - 1 for sample in logs))


def _positive(series: MetricSeries, point: SeriesPoint) -> NDArray[np.float64]:
    samples = np.asarray(point.samples, dtype=np.float64)
    if not (np.isfinite(samples).all() and (samples > 0.0).all()):
        raise ParameterError(
            f"{series.mode} {series.case}/{series.fix}: {series.metric} at {point.position} holds a ratio that is "
            f"not above 0 ({samples.min():g}); remove that result and run it again"
        )
    return samples


def _located(point: SeriesPoint, noise: Noise) -> SeriesPoint:
    """Return a point with the location of its samples as value, and its interval."""
    if point.value is None or not point.samples:
        return point
    logs = np.log(np.asarray(point.samples, dtype=np.float64))
    middle = float(locations(logs[None, None], np.array([noise.scale]))[0, 0])
    half = student_quantile(1.0 - CONFIDENCE, noise.degrees_of_freedom) * noise.scale / math.sqrt(logs.size)
    return replace(point, value=math.exp(middle), interval=(math.exp(middle - half), math.exp(middle + half)))


@dataclass(frozen=True, kw_only=True)
class SeedDrift(Keyed):
    """One fix under one torch version."""

    metric: str = "drift"
    torch_version: str
    benchmark_version: str
    cpu: str
    drift: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> SeedDrift:
        """Read a line of the file."""
        names = {field.name for field in fields(cls)} - {"metric", "drift"}
        drift = tuple(sorted((int(seed), float(value)) for seed, value in line["drift"].items()))
        return cls(**{name: str(line[name]) for name in names}, drift=drift)


@dataclass(frozen=True, kw_only=True)
class SeedStep:
    """Drift of one version over that of another, seed by seed."""

    old: float
    new: float
    factor: float
    interval: tuple[float, float]
    least: float
    most: float
    seeds: int


def read_drift_seeds(results: Path) -> tuple[SeedDrift, ...]:
    """Read what was measured over seeds; nothing where the file is not there."""
    path = results / SEEDS_NAME
    with worked_out_from(path, remedy="remove the lines that were edited"):
        return tuple(map(SeedDrift.of, TrialFile(path).read()))


def step_of_samples(old: Sequence[float], new: Sequence[float]) -> SeedStep | None:
    """Compare two positions seed by seed, given the drift of each seed in the seeds' order; None of too few."""
    if not len(old) == len(new) >= LEAST_SEEDS or min((*old, *new)) <= 0.0:
        return None
    logs = np.log([old, new])  # (positions, seeds)
    ratios = logs[1] - logs[0]
    middle, count = float(ratios.mean()), ratios.size
    half = student_quantile(1.0 - CONFIDENCE, count - 1) * float(ratios.std(ddof=1)) / math.sqrt(count)
    return SeedStep(
        old=math.exp(float(logs[0].mean())),
        new=math.exp(float(logs[1].mean())),
        factor=math.exp(middle),
        interval=(math.exp(middle - half), math.exp(middle + half)),
        least=math.exp(float(ratios.min())),
        most=math.exp(float(ratios.max())),
        seeds=count,
    )


def seed_step(seeds: Iterable[SeedDrift], key: Key, *, before: str, at: str, benchmark_version: str) -> SeedStep | None:
    """Compare two versions seed by seed."""
    of = {
        drift.torch_version: dict(drift.drift)
        for drift in seeds
        if drift.key == key and drift.benchmark_version == benchmark_version
    }
    old, new = of.get(before, {}), of.get(at, {})
    shared = sorted(set(old) & set(new))
    return step_of_samples([old[seed] for seed in shared], [new[seed] for seed in shared])
