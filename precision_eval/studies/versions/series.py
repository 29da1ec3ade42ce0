"""Values of one metric over torch versions or commits, and the noise they carry.

Conventions: a *position* is a torch version or the first eight characters of a commit. Metrics are of four kinds:
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from precision_eval.core.errors import ParameterError
from precision_eval.stats import student_quantile
from precision_eval.studies.versions.points import Key, Point, ResultSet

Floats = NDArray[np.float64]

PAIRED = ("latency_ratio", "latency_to_anchor")
EXACT: Mapping[str, float] = {"drift": 1.5, "peak_bytes": 1.01, "stored_bytes": 1.01}
"""Metric to the factor from which a change is reported. Drift is of one seed: where nothing but the rounding's luck
changed, eight seeds gave factors of 0.92 to 1.28 (metavoice-decode-float32 between 2.8.0 and 2.9.1); 1.5 was chosen
after seeing those, to be beyond what luck makes. Smaller ones need several seeds (:mod:`.drift_seeds`), whose interval
must lie beyond ``SEEDED``. Bytes: an allocator rounds to pages."""

SEEDED = 1.1
"""Factor that the interval of a drift over several seeds must lie beyond; smaller changes are shown and not called."""

CONFIDENCE = 0.95
PRIOR_DEGREES = 5.0
"""What the other fixes' noise is worth. Chosen beforehand: little beside ten versions of three processes (20)."""

CUT = 3.0
HUBER = 1.5
"""Residuals beyond so many spreads lose weight in a location; 96 % efficient on normal noise."""

_PAIR_MEDIAN = 1.0483
"""Spread over the median of |a − b|: 1/(√2 · 0.6745)."""

_TIED = 1e-6
"""A robust spread below so much of the plain one is rounding among equal samples."""


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
class Series:
    """One metric of one fix over all positions.

    Attributes
    ----------
    mode, case, metric, fix, size, unit : str
    kind : str
        ``"paired"``, ``"exact"``, ``"status"`` or ``"other"``.
    points : tuple of SeriesPoint
        One per position, absent ones included.
    noise : Noise or None
        None where the metric has none, or too few samples were kept.
    """

    mode: str
    case: str
    metric: str
    fix: str
    size: str
    unit: str
    kind: str
    points: tuple[SeriesPoint, ...]
    noise: Noise | None

    @property
    def key(self) -> Key:
        """Mode, case, metric, fix, size."""
        return (self.mode, self.case, self.metric, self.fix, self.size)

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


def build_series(sets: Sequence[ResultSet], positions: Sequence[str]) -> tuple[Series, ...]:
    """Return every series of some result sets, with its noise."""
    if len(sets) != len(positions) or len(set(positions)) != len(positions):
        raise ParameterError(f"{len(sets)} result sets for the positions {', '.join(positions)}; expected one for each")
    keys = sorted({key for one in sets for key, point in one.points.items() if point.state != "absent"})
    bare = [_bare(key, [one.points.get(key) for one in sets], positions) for key in keys]
    return tuple(_with_noise(bare))


def _bare(key: Key, points: Sequence[Point | None], positions: Sequence[str]) -> Series:
    """Return a series before its noise is known."""
    mode, case, metric, fix, size = key
    found = tuple(
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
    )
    unit = next((point.unit for point in reversed(points) if point and point.unit), "")
    kind = kind_of(metric)
    return Series(
        mode=mode, case=case, metric=metric, fix=fix, size=size, unit=unit, kind=kind, points=found, noise=None
    )


def _with_noise(series: Iterable[Series]) -> list[Series]:
    """Give each paired series its noise, drawn towards that of the other fixes, and its points their intervals."""
    series = list(series)
    own = {one.key: _own_scale(one) for one in series if one.kind == "paired"}
    groups: dict[tuple[str, ...], list[float]] = {}
    for (mode, case, metric, _, size), found in own.items():
        if found is not None and found[0] > 0.0:
            groups.setdefault((mode, case, metric, size), []).append(found[0])
    result = []
    for one in series:
        found = own.get(one.key)
        if found is None:
            result.append(one)
            continue
        scale, degrees = found
        peers = groups.get((one.mode, one.case, one.metric, one.size), [])
        noise = _noise(scale, degrees, float(np.median(peers)) if len(peers) > 1 and scale > 0.0 else None)
        result.append(replace(one, noise=noise, points=tuple(_located(point, noise) for point in one.points)))
    return result


def _noise(own: float, degrees: float, prior: float | None) -> Noise:
    """Draw a series' own spread towards that of the others; a ratio to itself stays without noise."""
    if prior is None:
        return Noise(scale=own, degrees_of_freedom=degrees, own_scale=own, prior_scale=None)
    total = degrees + PRIOR_DEGREES
    scale = math.sqrt((degrees * own**2 + PRIOR_DEGREES * prior**2) / total)
    return Noise(scale=scale, degrees_of_freedom=total, own_scale=own, prior_scale=prior)


def _own_scale(series: Series) -> tuple[float, float] | None:
    """Return a paired series' own noise and its degrees of freedom; None without two processes anywhere."""
    logs = [np.log(_positive(series, point)) for point in series.measured if point.samples]
    if all(one.size < 2 for one in logs):
        return None
    return float(pair_scale(padded(logs)[None])[0]), float(sum(one.size - 1 for one in logs))


def _positive(series: Series, point: SeriesPoint) -> Floats:
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


def padded(rows: Sequence[Floats]) -> Floats:
    """Return rows of different lengths as one array, NaN beyond each; shape (n_rows, longest)."""
    table = np.full((len(rows), max((len(row) for row in rows), default=0)), np.nan)
    for number, row in enumerate(rows):
        table[number, : len(row)] = row
    return table


def pair_scale(values: Floats) -> Floats:
    """Spread of one sample within its row, from the differences between two samples of a row."""
    first, second = np.triu_indices(values.shape[2], k=1)
    used = ~np.isnan(values[0][:, first] - values[0][:, second]).ravel()
    differences = np.abs(values[:, :, first] - values[:, :, second]).reshape(len(values), -1)[
        :, used
    ]  # (tables, pairs)
    if not differences.shape[1]:
        return np.zeros(len(values))
    robust = _PAIR_MEDIAN * np.median(differences, axis=1)
    plain = np.sqrt(np.mean(differences**2, axis=1) / 2.0)
    limit = CUT * math.sqrt(2.0) * robust[:, None]
    cut = np.sqrt(np.mean(np.minimum(differences, limit) ** 2, axis=1) / (2.0 * _cut_moment(CUT)))
    return np.where(robust > _TIED * plain, cut, plain)


def _cut_moment(limit: float) -> float:
    """E[min(Z², limit²)] of a standard normal Z."""
    tail = math.erfc(limit / math.sqrt(2.0))  # both sides
    density = math.exp(-0.5 * limit**2) / math.sqrt(2.0 * math.pi)
    return 1.0 - tail - 2.0 * limit * density + limit**2 * tail


def locations(values: Floats, scale: Floats, *, steps: int = 4) -> Floats:
    """Huber location of each row at a given spread."""
    ordered = np.sort(values, axis=2)  # NaN last
    count = np.count_nonzero(~np.isnan(values[0]), axis=1)[None, :, None]
    shape = (len(values), values.shape[1], 1)
    low, high = (
        np.take_along_axis(ordered, np.broadcast_to(at, shape), axis=2) for at in ((count - 1) // 2, count // 2)
    )
    middle = 0.5 * (low + high)
    limit = HUBER * np.where(scale > 0.0, scale, 1.0)[:, None, None]
    filled = np.where(np.isnan(values), np.inf, values)  # weight 0
    finite = np.where(np.isnan(values), 0.0, values)
    for _ in range(steps):
        weight = limit / np.maximum(np.abs(filled - middle), limit)
        middle = np.sum(weight * finite, axis=2, keepdims=True) / np.sum(weight, axis=2, keepdims=True)
    return np.where(scale[:, None] > 0.0, middle[..., 0], 0.5 * (low + high)[..., 0])
