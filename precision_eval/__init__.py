"""What each fix for "Expected query, key, and value to have the same dtype" costs.

Latency, memory, numeric drift and sound, each with its uncertainty, for a list of fixes (``FIXES``) on systems in the
state in which the error occurs (``CASES``). Importing this loads no torch; the public names below are looked up
when they are first used.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from precision_eval.cases.huggingface.generation import generation_case
    from precision_eval.cases.own import OwnCase
    from precision_eval.cases.systems import CASES, Case, case_by_id
    from precision_eval.core.errors import (
        CandidateError,
        IntegrityError,
        ParameterError,
        PrecisionEvalError,
        RecordError,
        UnknownNameError,
        UnsupportedError,
    )
    from precision_eval.doctor.diagnosis import Diagnosis
    from precision_eval.doctor.examination import examine
    from precision_eval.evaluation import evaluate
    from precision_eval.explain import Explanation, explain
    from precision_eval.fixes.catalog import FIXES, Fix, fix_by_id
    from precision_eval.fixes.outside import fixed
    from precision_eval.measure.latency import Candidate, compare_latency
    from precision_eval.report.loading import choose, load
    from precision_eval.report.writer import write_report
    from precision_eval.results.choose import Constraints
    from precision_eval.stats.paired import PairedRatio
    from precision_eval.studies.compare import Costs, compare

__all__ = [
    "CASES",
    "FIXES",
    "Candidate",
    "CandidateError",
    "Case",
    "Constraints",
    "Costs",
    "Diagnosis",
    "Explanation",
    "Fix",
    "IntegrityError",
    "OwnCase",
    "PairedRatio",
    "ParameterError",
    "PrecisionEvalError",
    "RecordError",
    "UnknownNameError",
    "UnsupportedError",
    "__version__",
    "case_by_id",
    "choose",
    "compare",
    "compare_latency",
    "evaluate",
    "examine",
    "explain",
    "fix_by_id",
    "fixed",
    "generation_case",
    "load",
    "write_report",
]

_HOMES = {
    "Candidate": "precision_eval.measure.latency",
    "CandidateError": "precision_eval.core.errors",
    "Constraints": "precision_eval.results.choose",
    "Costs": "precision_eval.studies.compare",
    "Diagnosis": "precision_eval.doctor.diagnosis",
    "Explanation": "precision_eval.explain",
    "FIXES": "precision_eval.fixes.catalog",
    "Fix": "precision_eval.fixes.catalog",
    "fix_by_id": "precision_eval.fixes.catalog",
    "fixed": "precision_eval.fixes.outside",
    "generation_case": "precision_eval.cases.huggingface.generation",
    "OwnCase": "precision_eval.cases.own",
    "IntegrityError": "precision_eval.core.errors",
    "PairedRatio": "precision_eval.stats.paired",
    "ParameterError": "precision_eval.core.errors",
    "PrecisionEvalError": "precision_eval.core.errors",
    "RecordError": "precision_eval.core.errors",
    "UnknownNameError": "precision_eval.core.errors",
    "UnsupportedError": "precision_eval.core.errors",
    "CASES": "precision_eval.cases.systems",
    "choose": "precision_eval.report.loading",
    "compare": "precision_eval.studies.compare",
    "compare_latency": "precision_eval.measure.latency",
    "evaluate": "precision_eval.evaluation",
    "examine": "precision_eval.doctor.examination",
    "explain": "precision_eval.explain",
    "Case": "precision_eval.cases.systems",
    "case_by_id": "precision_eval.cases.systems",
    "load": "precision_eval.report.loading",
    "write_report": "precision_eval.report.writer",
}


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("precision-eval")
    except PackageNotFoundError:
        return "0+unknown"  # run from a source tree that was never installed


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    home = _HOMES.get(name)
    if home is None:
        from precision_eval.core.removed import removal_message

        if message := removal_message("public name", name):
            raise AttributeError(message)
        raise AttributeError(f"module 'precision_eval' has no attribute '{name}'; it has: {', '.join(sorted(__all__))}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Keeps ``precision_eval.explain`` the public function, whose name importing the room ``explain`` would take."""

    @property
    def explain(self) -> Any:
        return __getattr__("explain")

    @explain.setter
    def explain(self, room: ModuleType) -> None:
        pass  # the import system sets the room here; it stays in sys.modules


sys.modules[__name__].__class__ = _Package
