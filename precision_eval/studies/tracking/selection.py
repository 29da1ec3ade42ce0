"""Of what figures are tracked: cases and sizes per mode, metrics per case, labels of fixes.

Conventions: everything that the registries hold is tracked eager, at its default sizes: status, drift and memory of
all, times of one case per system (:data:`TIMED_CASES`), whose variants differ in where the dtypes split and
hardly in speed. Compiling costs seconds per fix and process, so :data:`COMPILED` names the few that are tracked
compiled, each at its first default size.
"""

from __future__ import annotations

from collections.abc import Mapping

from precision_eval.cases.systems import Case, all_cases, case_by_id
from precision_eval.fixes.catalog import FIXES
from precision_eval.studies.tracking.metrics import METRICS, TrackedMetric

TIMED_CASES: tuple[str, ...] = (
    "attention-decode",
    "attention-prefill",
    "voice",
    "metavoice-decode",
    "dia-decode",
    "imaginairy-time-embed",
    "cogvideo-t5-encoder",
)
"""One per system, and the two bare attentions."""

TIMED_METRICS: tuple[str, ...] = ("time", "peakmem", "latency_ratio", "latency_to_anchor")

SIZES: Mapping[str, tuple[str, ...]] = {"attention-prefill": ("metavoice",)}
"""Where not all default sizes are tracked: grouped heads are covered by the decode."""

COMPILED: Mapping[str, tuple[str, ...]] = {
    "attention-decode": ("status", "drift", "latency_ratio", "latency_to_anchor"),
    "metavoice-decode": ("status",),
}
"""Metrics tracked compiled. One bare attention and one whole decoder, both had the bug under ``torch.compile``; each
measure compiles every fix once more, and the paired latency once per process."""


def tracked_cases(mode: str) -> tuple[Case, ...]:
    """Return the cases tracked in a mode, in the registries' order."""
    if mode == "eager":
        return all_cases()
    return tuple(case_by_id(name) for name in COMPILED)


def sizes_of(case: Case, mode: str) -> tuple[str, ...]:
    """Return the sizes at which a case is tracked."""
    return SIZES.get(case.id, case.default_sizes) if mode == "eager" else case.default_sizes[:1]


def metrics_of(case: Case, mode: str) -> tuple[TrackedMetric, ...]:
    """Return the metrics tracked of a case."""
    return tuple(
        metric
        for metric in METRICS
        if (metric.timed or metric.measure_of(case.measures) is not None)
        and (not metric.only or case.id in metric.only)
        and (case.id in TIMED_CASES or metric.id not in TIMED_METRICS)
        and (mode == "eager" or metric.id in COMPILED.get(case.id, ()))
    )


def fix_labels(case: Case) -> tuple[str, ...]:
    """Return the labels of the fixes that a case takes; one that lacks a mode stays and is not applicable there."""
    return tuple(fix.label for fix in FIXES if case.takes(fix.id))
