"""Diagnosis of a dtype error from its text: the operation, the operands, the likely causes, the fixes that apply.

Conventions: works on text alone, so it needs neither the model nor torch; what the text does not show is said to be
not shown, and a text of no known sentence is not diagnosed. ``import precision_eval.diagnose.explain`` loads no torch.
"""

from __future__ import annotations

from precision_eval.diagnose.explain.causes import CAUSES
from precision_eval.diagnose.explain.explanation import Explanation, explain
from precision_eval.results.mismatches import FAMILY

__all__ = ["CAUSES", "FAMILY", "Explanation", "explain"]
