"""The gate of a change: base and head of a repository in, a verdict and a summary for its pull request out.

Conventions: both versions of a case are imported by one process and timed in turn on the same tensors
(:mod:`~precision_eval.gate.measuring`), so that what is left is the difference of the code.
"""

from precision_eval.gate.judging import judge_pairs
from precision_eval.gate.result import FigureChange, GateCell, GateResult, Margins, PairFigures, SideFigures
from precision_eval.gate.summary import to_json, to_text

__all__ = [
    "FigureChange",
    "GateCell",
    "GateResult",
    "Margins",
    "PairFigures",
    "SideFigures",
    "judge_pairs",
    "to_json",
    "to_text",
]
