"""What is tracked: the literal list, and how each figure is read from a measure's data.

Conventions: a metric names measures of :data:`precision_eval.measure.registry.MEASURES`; the first of them that a
case has is the one. ``path`` leads through the measure's data to the number, or to the list of numbers, one per
process. Importing this loads neither torch nor numpy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from precision_eval.core.errors import unknown_name
from precision_eval.core.records import STATUSES, Record
from precision_eval.studies.tracking.place import FixFailedError

ANCHOR_DEFINITION: tuple[str, ...] = ("rows 16, width 512, layers 4, cache 2048 x 512, float32", "PCG64(0)", "v1")
"""Of the fixed computation in :mod:`precision_eval.studies.tracking.paired`."""

Figure = int | float | tuple[float, ...]
"""One number, or one per process."""


@dataclass(frozen=True, kw_only=True)
class TrackedMetric:
    """One tracked figure.

    `id` is its name in benchmarks and results. `measures` are those that give it, the first one that a case has; empty
    where the benchmarking tool measures by itself. `path` leads through the data to the number, or with `samples` to
    the numbers, one per process; an empty one gives the status. `only` names the cases it is limited to. `revision` is
    raised when the figure's meaning changes in a way that no other field shows.
    """

    id: str
    title: str
    unit: str
    measures: tuple[str, ...]
    path: tuple[str, ...] = ()
    samples: bool = False
    only: tuple[str, ...] = ()
    revision: int = 1

    @property
    def timed(self) -> bool:
        """Whether the benchmarking tool measures by itself."""
        return not self.measures

    @property
    def method(self) -> str:
        """Name of the benchmark's method."""
        return f"{self.id}_call" if self.timed else f"track_{self.id}"

    def measure_of(self, measures: tuple[str, ...]) -> str | None:
        """Return the measure that gives it, given those that a case has; None where none does."""
        return next((name for name in self.measures if name in measures), None)

    def read(self, outcome: Record) -> Figure:
        """Read the figure from a record; raise where its data hold no number, such as a ratio without a baseline."""
        if not self.path:
            return STATUSES.index(outcome.status) + 1
        value: Any = outcome.data
        for name in self.path:
            value = value.get(name) if isinstance(value, Mapping) else None
        if self.samples and isinstance(value, list) and value:
            return tuple(float(sample) for sample in value)
        if not self.samples and isinstance(value, int | float) and not isinstance(value, bool):
            return value
        why = (outcome.data or {}).get("missing", {}).get(self.path[-1]) or f"found {value!r}"
        raise FixFailedError(f"{outcome.fix} has no {self.title}: {why}")


METRICS: tuple[TrackedMetric, ...] = (
    TrackedMetric(id="time", title="time of a call", unit="seconds", measures=()),
    TrackedMetric(id="peakmem", title="peak resident memory of the process", unit="bytes", measures=()),
    TrackedMetric(
        id="status",
        title="status",
        unit=", ".join(f"{number} {status}" for number, status in enumerate(STATUSES, start=1)),
        measures=("trace",),
    ),
    TrackedMetric(
        id="drift",
        title="drift",
        unit="relative error to float64",
        measures=("drift", "teacher_forced_drift"),
        path=("relative_error",),
    ),
    TrackedMetric(
        id="peak_bytes",
        title="allocated by a call",
        unit="bytes",
        measures=("memory",),
        path=("allocated_peak_bytes",),
    ),
    TrackedMetric(
        id="stored_bytes",
        title="weights and caches",
        unit="bytes",
        measures=("memory",),
        path=("storage_bytes",),
    ),
    TrackedMetric(
        id="latency_ratio",
        title="latency, paired with full_float32",
        unit="ratio to full_float32",
        measures=("latency",),
        path=("ratio_to_baseline",),
        samples=True,
        revision=2,
    ),
    TrackedMetric(
        id="latency_to_anchor",
        title="latency, paired with a fixed computation",
        unit="ratio to the anchor",
        measures=("latency",),
        path=("ratio_to_anchor",),
        samples=True,
        revision=2,
    ),
    TrackedMetric(
        id="divergence",
        title="divergence of free-running streams",
        unit="fraction of tokens that differ from the float64 original's",
        measures=("divergence",),
        path=("token_difference_fraction",),
        only=("voice",),
    ),
    TrackedMetric(
        id="audio_degradation",
        title="degradation of the sound",
        unit="log-spectral distance to the float64 original, as a ratio to another noise seed's",
        measures=("audio",),
        path=("against_reference", "log_spectral_distance_db", "ratio_to_null"),
        only=("voice",),
    ),
)

TIMED: tuple[str, ...] = tuple(metric.id for metric in METRICS if metric.timed)


def metric_by_id(metric_id: str) -> TrackedMetric:
    """Look a metric up."""
    for metric in METRICS:
        if metric.id == metric_id:
            return metric
    raise unknown_name("metric", metric_id, (metric.id for metric in METRICS))
