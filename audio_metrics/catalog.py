"""METRICS: every metric of the package as data.

Conventions: `direction` says which is better; None where neither is (a description of a signal). `aligned` says
whether sample n of the estimate has to belong to sample n of the reference. `n_signals` is 1 for a description of one
signal.
"""

from __future__ import annotations

from audio_metrics.catalog_aligned import ALIGNED
from audio_metrics.catalog_single import SINGLE, TOKENS
from audio_metrics.catalog_unaligned import UNALIGNED
from audio_metrics.errors import ParameterError
from audio_metrics.metric import Metric

METRICS: tuple[Metric, ...] = ALIGNED + UNALIGNED + SINGLE + TOKENS


def metric_by_name(name: str) -> Metric:
    """The metric of that name.

    Raises
    ------
    ParameterError
        There is none.
    """
    for metric in METRICS:
        if metric.name == name:
            return metric
    raise ParameterError(f"unknown metric {name!r}; known: {', '.join(metric.name for metric in METRICS)}")
