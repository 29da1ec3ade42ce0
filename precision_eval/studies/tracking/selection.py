"""Of what figures are tracked: workloads and sizes per mode, metrics per workload, labels of fixes.

Conventions: everything that the registries hold is tracked eager, at its default sizes: status, drift and memory of
all, times of one workload per system (:data:`TIMED_WORKLOADS`), whose variants differ in where the dtypes split and
hardly in speed. Compiling costs seconds per fix and process, so :data:`COMPILED` names the few that are tracked
compiled, each at its first default size.
"""

from __future__ import annotations

from collections.abc import Mapping

from precision_eval.cases.systems import Workload, all_workloads, workload_by_id
from precision_eval.fixes.catalog import FIXES
from precision_eval.studies.tracking.metrics import METRICS, Metric

TIMED_WORKLOADS: tuple[str, ...] = (
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


def tracked_workloads(mode: str) -> tuple[Workload, ...]:
    """Return the workloads tracked in a mode, in the registries' order."""
    if mode == "eager":
        return all_workloads()
    return tuple(workload_by_id(name) for name in COMPILED)


def sizes_of(workload: Workload, mode: str) -> tuple[str, ...]:
    """Return the sizes at which a workload is tracked."""
    return SIZES.get(workload.id, workload.default_sizes) if mode == "eager" else workload.default_sizes[:1]


def metrics_of(workload: Workload, mode: str) -> tuple[Metric, ...]:
    """Return the metrics tracked of a workload."""
    return tuple(
        metric
        for metric in METRICS
        if (metric.timed or metric.measure_of(workload.measures) is not None)
        and (not metric.only or workload.id in metric.only)
        and (workload.id in TIMED_WORKLOADS or metric.id not in TIMED_METRICS)
        and (mode == "eager" or metric.id in COMPILED.get(workload.id, ()))
    )


def fix_labels(workload: Workload) -> tuple[str, ...]:
    """Return the labels of the fixes that a workload takes; one that lacks a mode stays and is not applicable there."""
    return tuple(fix.label for fix in FIXES if workload.takes(fix.id))
