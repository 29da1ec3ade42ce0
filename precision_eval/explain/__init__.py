"""Diagnosis of a dtype error from its text: the operation, the operands, the likely causes, the fixes that apply.

Conventions: works on text alone, so it needs neither the model nor torch; what the text does not show is said to be
not shown, and a text of no known sentence is not diagnosed. ``import precision_eval.explain`` loads no torch.
"""

from __future__ import annotations

from precision_eval.explain.causes import CAUSES
from precision_eval.explain.explanation import Explanation, explain
from precision_eval.explain.mismatches import FAMILY

__all__ = ["CAUSES", "FAMILY", "Explanation", "explain"]
