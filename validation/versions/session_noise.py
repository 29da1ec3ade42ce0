"""Noise between sessions of equal code: how large it is, and tables of series that have it.

All on the logarithm of ratios. A made-up table is one case's sessions themselves, every sample as it
was measured, drawn without repetition and put in random order as its versions; so what a session shifts, in all series
of the case or in one, and what a single process does, stay what they were, and no model of them is needed. Tables
of the same few sessions are not independent of each other. How large the noise is, is told apart by the one-way
analysis of variance: the variance between sessions is that of their means less what the processes explain, 0 where
that is negative.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_eval.stats.robust import pair_scale
from precision_eval.studies.versions.changes import SESSION_MARGIN
from validation.versions.rivals import Table

Floats = NDArray[np.float64]


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


def made_table(
    tables: Sequence[Table],
    rng: np.random.Generator,
    *,
    versions: int,
    sizes: Sequence[float],
    metric: str,
    steps: bool,
) -> tuple[Table, dict[str, tuple[int, float]]]:
    """Return a table of one case with its sessions in random order as versions, and where its steps are."""
    members = tables[int(rng.integers(len(tables)))]
    order = rng.permutation(len(next(iter(members.values()))))[:versions]
    table: dict[str, list[Floats]] = {}
    injected: dict[str, tuple[int, float]] = {}
    for number, (fix, rows) in enumerate(members.items()):
        levels = np.zeros(len(order))
        if steps and number % 2:
            version, size = int(rng.integers(1, len(order))), float(rng.choice(sizes))
            step = math.log1p(SESSION_MARGIN[metric]) + size * estimated(rows).scale
            levels[version:] = float(rng.choice([-1.0, 1.0])) * step
            injected[fix] = (version, size)
        table[fix] = [rows[session] * math.exp(level) for session, level in zip(order, levels, strict=True)]
    return table, injected


def measured_tables(sessions: Mapping[str, Mapping[str, Mapping[str, Any]]], metric: str) -> list[Table]:
    """Return the sessions themselves as tables, a case each, in the order in which they were measured."""
    return [
        {fix: [np.asarray(row) for row in rows] for fix, rows in metrics[metric].items()}
        for metrics in sessions.values()
    ]
