"""What a dtype error means, from its text: the operation, the operands, the likely causes, the fixes that apply.

It needs neither the model nor torch. What the text does not show is said to be not shown, and a text of no known
sentence is not diagnosed.
"""

from __future__ import annotations

from precision_eval.explain.answer import Explanation
from precision_eval.explain.explanation import explain

__all__ = ["Explanation", "explain"]
