"""Rules that find steps in a table of series: ours, fixed factors, and asv's own.

A table maps a series' name to one array of ratios per version, shape (n_processes,). A rule returns, per series and
step, the range of versions at which the new level may begin; only ours ever names more than one. asv is imported when
its rule runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from precision_eval.history.changes import SESSION_MARGIN, change_points
from precision_eval.history.series import build_series
from precision_eval.results.asv import AsvPoint, ResultSet

Floats = NDArray[np.float64]
Table = Mapping[str, Sequence[Floats]]
Found = dict[str, list[range]]


def ours(table: Table, *, metric: str = "latency_ratio", margins: Mapping[str, float] | None = None) -> Found:
    """Find steps as ``precision-eval versions`` does: noise, test, control over the table, positions."""
    sets = [_result_set(table, number, metric) for number in range(len(next(iter(table.values()))))]
    positions = [one.torch_version for one in sets]
    reported: Found = {name: [] for name in table}
    for change in change_points(build_series(sets, positions), margins=margins or {}):
        reported[change.fix].append(range(positions.index(change.before) + 1, positions.index(change.at) + 1))
    return reported


def _result_set(table: Table, number: int, metric: str) -> ResultSet:
    points = [_point(name, rows[number], metric) for name, rows in table.items()]
    return ResultSet(
        machine="trial", commit="0" * 40, environment=str(number), python="3.11", torch_version=f"2.{number}.0",
        cuda_build=False, date_ms=number, source=Path("trial.json"), hardware={},
        points={point.key: point for point in points},
    )  # fmt: skip


def _point(name: str, samples: Floats, metric: str) -> AsvPoint:
    return AsvPoint(
        mode="eager", case="trial", metric=metric, fix=name, size="tiny", state="measured", unit="",
        value=float(np.median(samples)), samples=tuple(map(float, samples)), benchmark_version="1",
    )  # fmt: skip


def by_factor(table: Table, factor: float) -> Found:
    """Say that a step is where the median leaves that of the version before by more than a factor."""
    reported = {}
    for name, rows in table.items():
        logs = [math.log(float(np.median(row))) for row in rows]
        moved = [k for k, (a, b) in enumerate(pairwise(logs), start=1) if abs(b - a) > math.log(factor)]
        reported[name] = [range(k, k + 1) for k in moved]
    return reported


def by_asv(table: Table) -> Found:
    """Find steps as ``asv publish`` does: medians weighted by their 99 % intervals, penalised absolute deviations."""
    from asv.step_detect import detect_steps
    from asv_runner.statistics import compute_stats  # type: ignore[import-untyped]

    reported = {}
    for name, rows in table.items():
        values, stats = zip(*(compute_stats(list(map(float, row)), 1) for row in rows), strict=True)
        widths = [one["ci_99_b"] - one["ci_99_a"] for one in stats]
        # as asv's graphs have it: 2 over the width of the interval, and no weights where one is not finite
        usable = all(math.isfinite(width) and width > 0.0 for width in widths)
        steps = detect_steps(list(values), [2.0 / width for width in widths] if usable else None)
        reported[name] = [range(int(left), int(left) + 1) for left, *_ in steps[1:]]
    return reported


OURS = "precision-eval versions"
NO_MARGIN = "precision-eval versions, no margin"

RULES: Mapping[str, Callable[[Table], Found]] = {
    OURS: ours,
    "factor 1.05": lambda table: by_factor(table, 1.05),
    "factor 1.1": lambda table: by_factor(table, 1.1),
    "asv step detection": by_asv,
}


def session_rules(metric: str) -> Mapping[str, Callable[[Table], Found]]:
    """Return the rules where every version is a session of its own: ours with the margin it then has, and without."""
    others = {name: rule for name, rule in RULES.items() if name != OURS}
    return {
        OURS: lambda table: ours(table, metric=metric, margins=SESSION_MARGIN),
        NO_MARGIN: lambda table: ours(table, metric=metric),
        **others,
    }
