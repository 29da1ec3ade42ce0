"""What each fix for "Expected query, key, and value to have the same dtype" costs.

Latency, memory, numeric drift and sound, each with its uncertainty, for a list of fixes (``FIXES``) on systems in the
state in which the error occurs (``WORKLOADS``). Importing this loads no torch; the public names below are looked up
when they are first used.
"""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from precision_eval.costs import Costs, compare
    from precision_eval.decide import Constraints
    from precision_eval.doctor import Diagnosis, examine
    from precision_eval.errors import (
        CandidateError,
        IntegrityError,
        ParameterError,
        PrecisionEvalError,
        RecordError,
        UnknownNameError,
        UnsupportedError,
    )
    from precision_eval.fixes.catalog import FIXES, Fix, fix_by_id
    from precision_eval.from_outside import fixed
    from precision_eval.loading import choose, load
    from precision_eval.measure.assess import Assessment, assess
    from precision_eval.measure.latency import Candidate, compare_latency
    from precision_eval.messages import Explanation, explain
    from precision_eval.report import write_report
    from precision_eval.statistics import PairedRatio
    from precision_eval.workloads import WORKLOADS, Workload, workload_by_id

__all__ = [
    "FIXES",
    "WORKLOADS",
    "Assessment",
    "Candidate",
    "CandidateError",
    "Constraints",
    "Costs",
    "Diagnosis",
    "Explanation",
    "Fix",
    "IntegrityError",
    "PairedRatio",
    "ParameterError",
    "PrecisionEvalError",
    "RecordError",
    "UnknownNameError",
    "UnsupportedError",
    "Workload",
    "__version__",
    "assess",
    "choose",
    "compare",
    "compare_latency",
    "examine",
    "explain",
    "fix_by_id",
    "fixed",
    "load",
    "workload_by_id",
    "write_report",
]

_HOMES = {
    "Assessment": "precision_eval.measure.assess",
    "Candidate": "precision_eval.measure.latency",
    "CandidateError": "precision_eval.errors",
    "Constraints": "precision_eval.decide",
    "Costs": "precision_eval.costs",
    "Diagnosis": "precision_eval.doctor.diagnosis",
    "Explanation": "precision_eval.messages",
    "FIXES": "precision_eval.fixes.catalog",
    "Fix": "precision_eval.fixes.catalog",
    "fix_by_id": "precision_eval.fixes.catalog",
    "fixed": "precision_eval.from_outside",
    "IntegrityError": "precision_eval.errors",
    "PairedRatio": "precision_eval.statistics",
    "ParameterError": "precision_eval.errors",
    "PrecisionEvalError": "precision_eval.errors",
    "RecordError": "precision_eval.errors",
    "UnknownNameError": "precision_eval.errors",
    "UnsupportedError": "precision_eval.errors",
    "WORKLOADS": "precision_eval.workloads",
    "assess": "precision_eval.measure.assess",
    "choose": "precision_eval.loading",
    "compare": "precision_eval.costs",
    "compare_latency": "precision_eval.measure.latency",
    "examine": "precision_eval.doctor.examination",
    "explain": "precision_eval.messages",
    "Workload": "precision_eval.workloads",
    "workload_by_id": "precision_eval.workloads",
    "load": "precision_eval.loading",
    "write_report": "precision_eval.report",
}


def _version() -> str:
    try:
        return version("precision-eval")
    except PackageNotFoundError:
        return "0+unknown"  # run from a source tree that was never installed


__version__ = _version()


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'precision_eval' has no attribute '{name}'; it has: {', '.join(sorted(__all__))}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
