"""Digests: what a figure's meaning depends on, so that a changed definition starts a new series.

Conventions: SHA-256, hexadecimal. A fix is not part of a benchmark's version: it is a parameter, and a redefined one
gets a new label through its revision, so that the other fixes' series go on.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

from precision_eval.cases.systems import Case
from precision_eval.fixes.catalog import Fix
from precision_eval.measure.registry import measure_by_name
from precision_eval.studies.tracking.effort import FULL, THREADS
from precision_eval.studies.tracking.metrics import ANCHOR_DEFINITION, Metric

_SHAPING = ("seed", "streams", "steps", "minutes")
"""Options that change what a figure is; the others change only how sure it is."""


def version_of(case: Case, mode: str, metric: Metric) -> str:
    """Digest of a tracked figure's definition."""
    content: list[Any] = [case.digest, mode, THREADS, _meaning(metric)]
    measure = metric.measure_of(case.measures)
    if measure is not None:
        options = measure_by_name(measure).options
        content += [measure, FULL.options.chosen(tuple(name for name in options if name in _SHAPING))]
    if metric.id == "latency_to_anchor":
        content.append(ANCHOR_DEFINITION)
    return _digest(content)


def fix_digest(fix: Fix) -> str:
    """Digest of what a fix does; its words are left out."""
    return _digest([fix.id, fix.storage, fix.agreement, fix.modes, fix.suppress_errors])


def _meaning(metric: Metric) -> dict[str, Any]:
    return {name: value for name, value in asdict(metric).items() if name not in ("title", "only")}


def _digest(content: list[Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()
