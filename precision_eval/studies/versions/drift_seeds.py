"""Drift over several seeds, measured beside asv's results: what the tracked figure, which is of one seed, cannot say.

Conventions: beside asv's results lies ``drift-seeds.jsonl``, a line per torch version, fix and size with the drift of
each seed (it ends in ``.jsonl`` because asv takes every ``.json`` below its results for one of them). Two versions are
compared seed by seed: weights and inputs are the same on both sides, so the scatter of the log-ratios is what chance in
the rounding makes, and their mean has Student's interval. Only seeds that both sides have count, at least
:data:`LEAST_SEEDS` of them, and only where the benchmark's definition is the one of the results.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from precision_eval.core.errors import RecordError
from precision_eval.results.asv import Key
from precision_eval.stats import student_quantile

SEEDS_NAME = "drift-seeds.jsonl"
LEAST_SEEDS = 5
CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class SeedDrift:
    """One fix under one torch version."""

    mode: str
    case: str
    fix: str
    size: str
    torch_version: str
    benchmark_version: str
    cpu: str
    drift: tuple[tuple[int, float], ...]

    @property
    def key(self) -> Key:
        """Mode, case, metric, fix, size."""
        return (self.mode, self.case, "drift", self.fix, self.size)


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
    if not path.is_file():
        return ()
    found = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            one = json.loads(line)
            found[one["key"]] = SeedDrift(
                **{name: str(one[name]) for name in SeedDrift.__dataclass_fields__ if name != "drift"},
                drift=tuple(sorted((int(seed), float(value)) for seed, value in one["drift"].items())),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordError(f"{path} line {number} is not as it is written ({error!r}); remove that line") from error
    return tuple(found.values())


def seed_step(seeds: Iterable[SeedDrift], key: Key, *, before: str, at: str, benchmark_version: str) -> SeedStep | None:
    """Compare two versions seed by seed."""
    of = {
        one.torch_version: dict(one.drift)
        for one in seeds
        if one.key == key and one.benchmark_version == benchmark_version
    }
    old, new = of.get(before, {}), of.get(at, {})
    shared = sorted(set(old) & set(new))
    if len(shared) < LEAST_SEEDS or any(min(old[seed], new[seed]) <= 0.0 for seed in shared):
        return None
    logs = np.log([[old[seed], new[seed]] for seed in shared])  # (seeds, 2)
    ratios = logs[:, 1] - logs[:, 0]
    middle, count = float(ratios.mean()), len(shared)
    half = student_quantile(1.0 - CONFIDENCE, count - 1) * float(ratios.std(ddof=1)) / math.sqrt(count)
    return SeedStep(
        old=math.exp(float(logs[:, 0].mean())),
        new=math.exp(float(logs[:, 1].mean())),
        factor=math.exp(middle),
        interval=(math.exp(middle - half), math.exp(middle + half)),
        least=math.exp(float(ratios.min())),
        most=math.exp(float(ratios.max())),
        seeds=count,
    )
