"""What is followed over commits and torch versions: figures of every case × fix, read from the suite's measures.

Conventions: a *figure* is one number of one fix on one case, in one mode and size; a figure from several processes
comes as samples, one per process. The definitions live here, so that an old commit measures what it defined; whatever
shows the figures (the asv classes in ``benchmarks/``) only asks for them. Figures are measured when first asked for,
all fixes of a case at once, each fix in a process of its own, and kept in a folder for whoever asks next.
"""

from __future__ import annotations

from precision_eval.studies.tracking.definitions import (
    FULL,
    METRICS,
    QUICK,
    Effort,
    FixFailedError,
    NotApplicableError,
    TrackedCell,
    TrackedMetric,
    fix_digest,
    fix_labels,
    metric_by_id,
    metrics_of,
    sizes_of,
    tracked_cases,
    version_of,
)
from precision_eval.studies.tracking.outcomes import figure, outcomes_of, preload

__all__ = [
    "FULL",
    "METRICS",
    "QUICK",
    "Effort",
    "FixFailedError",
    "NotApplicableError",
    "TrackedCell",
    "TrackedMetric",
    "figure",
    "fix_digest",
    "fix_labels",
    "metric_by_id",
    "metrics_of",
    "outcomes_of",
    "preload",
    "sizes_of",
    "tracked_cases",
    "version_of",
]
