"""Tables of series with noise and known steps, and the noise they are made of.

All on the logarithm of ratios. The noise of processes is taken from a run's records or drawn. A table of *sessions* is
one case's sessions of equal code themselves, every sample as it was measured, drawn without repetition and put in
random order as its versions; so what a session shifts, in all series of the case or in one, and what a single process
does, stay what they were, and no model of them is needed. Tables of the same few sessions are not independent of each
other. How large the noise is, is told apart by the one-way analysis of variance: the variance between sessions is that
of their means less what the processes explain, 0 where that is negative.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_eval.core.errors import RecordError
from precision_eval.history.changes import SESSION_MARGIN
from precision_eval.stats.robust import pair_scale
from validation.versions.rivals import Table

Floats = NDArray[np.float64]
Residuals = tuple[Floats, float]
"""Log-ratios of a cell's processes about their median, and their scale."""
Steps = dict[str, tuple[int, float]]
"""Series to the version and the size of its step."""

VERSIONS = 10
SERIES = 8
SIZES = (3.0, 4.0, 6.0)
SCALE = 0.01
"""Of made-up noise: 1 % between processes."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """What the tables are made of."""

    noise: str
    processes: int
    unit: str
    metric: str = "latency_ratio"

    @property
    def of_sessions(self) -> bool:
        """Whether the tables are of measured sessions."""
        return self.noise == "sessions"

    @property
    def name(self) -> str:
        """As in the file."""
        if self.of_sessions:
            margin = f"{100 * SESSION_MARGIN[self.metric]:.0f} %"
            return f"sessions, {self.metric}, {self.processes} processes, steps in SD of a {self.unit} beyond {margin}"
        return f"{self.noise} noise, {self.processes} processes, steps in SD of a {self.unit}"


CONDITIONS = (
    Condition(noise="real", processes=3, unit="process"),
    Condition(noise="normal", processes=3, unit="process"),
    Condition(noise="heavy", processes=3, unit="process"),
    Condition(noise="real", processes=5, unit="process"),
    Condition(noise="normal", processes=3, unit="value"),
    Condition(noise="real", processes=3, unit="value"),
    Condition(noise="sessions", processes=3, unit="process"),
    Condition(noise="sessions", processes=3, unit="process", metric="latency_to_anchor"),
)


def noise_on_record(path: Path) -> list[Residuals]:
    """Return the noise of processes on record, cell by cell; a file that has none is named in one line."""
    residuals = []
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            ratios = (json.loads(line).get("data") or {}).get("process_ratios") or ()
            if len(set(ratios)) >= 5:
                logs = np.log(np.asarray(ratios))
                centred = (logs - np.median(logs)) * math.sqrt(logs.size / (logs.size - 1.0))
                residuals.append((centred, float(pair_scale(logs[None, None])[0])))
    except OSError as error:
        raise RecordError(f"residuals={path} cannot be read: {error.strerror}; name a run's records") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise RecordError(f"residuals={path} is no file of records ({error}); name a run's records") from error
    if not residuals:
        raise RecordError(f"residuals={path} has no cell with five processes; name another run's")
    return residuals


def _series_noise(
    condition: Condition, rng: np.random.Generator, residuals: Sequence[Residuals]
) -> tuple[Floats, float]:
    """Return noise of one series, shape (VERSIONS, processes), and its standard deviation."""
    shape = (VERSIONS, condition.processes)
    if condition.noise == "normal":
        return SCALE * rng.standard_normal(shape), SCALE
    if condition.noise == "heavy":
        return SCALE * rng.standard_t(3.0, shape) * (0.6745 / 0.7649), SCALE  # quartiles of normal and t₃
    pool, scale = residuals[int(rng.integers(len(residuals)))]
    return rng.choice(pool, shape), scale


def made_table(
    condition: Condition, rng: np.random.Generator, source: Sequence[Any], *, steps: bool
) -> tuple[Table, Steps]:
    """Return a table, made of residuals or of measured tables, and where its steps are, in every second series."""
    table: dict[str, Sequence[Floats]] = {}
    injected: Steps = {}

    def levels_of(number: int, name: str, versions: int, unit: float, least: float = 0.0) -> Floats:
        levels = np.zeros(versions)
        if steps and number % 2:
            injected[name] = int(rng.integers(1, versions)), float(rng.choice(SIZES))
            version, size = injected[name]
            levels[version:] += float(rng.choice([-1.0, 1.0])) * (least + size * unit)
        return levels

    if condition.of_sessions:
        members = source[int(rng.integers(len(source)))]
        order = rng.permutation(len(next(iter(members.values()))))[:VERSIONS]
        margin = math.log1p(SESSION_MARGIN[condition.metric])
        for number, (fix, rows) in enumerate(members.items()):
            levels = levels_of(number, fix, len(order), estimated(rows).scale, margin)
            table[fix] = [rows[session] * math.exp(level) for session, level in zip(order, levels, strict=True)]
        return table, injected
    for number in range(SERIES):
        noise, scale = _series_noise(condition, rng, source)
        unit = scale / (math.sqrt(condition.processes) if condition.unit == "value" else 1.0)
        levels = levels_of(number, f"fix_{number}", VERSIONS, unit)
        table[f"fix_{number}"] = list(np.exp(levels[:, None] + noise))
    return table, injected


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Of one series of a case."""

    session_sd: float
    process_sd: float
    scale: float
    largest_difference: float


def estimated(ratios: Sequence[Sequence[float]] | Sequence[Floats]) -> Noise:
    """Take the sessions' and the processes' scatter apart."""
    logs = np.log(np.asarray(ratios, dtype=np.float64))
    means = logs.mean(axis=1)
    within = float(logs.var(axis=1, ddof=1).mean())
    between = max(0.0, float(means.var(ddof=1)) - within / logs.shape[1])
    return Noise(
        session_sd=math.sqrt(between),
        process_sd=math.sqrt(within),
        scale=float(pair_scale(logs[None])[0]),
        largest_difference=float(np.ptp(means)),
    )


def measured_tables(sessions: Mapping[str, Mapping[str, Mapping[str, Any]]], metric: str) -> list[Table]:
    """Return the sessions themselves as tables, a case each, in the order in which they were measured."""
    return [
        {fix: [np.asarray(row) for row in rows] for fix, rows in metrics[metric].items()}
        for metrics in sessions.values()
    ]
