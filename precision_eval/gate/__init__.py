"""The regression gate: two result sets in, a verdict and a summary fit for a pull request out.

Conventions: *base* is what is known, *head* what is proposed; a change is head over base, so above 1 = worse for every
metric that is judged. A *figure* is one metric of one place (case, fix, mode, size). Latency is compared by the
paired ratios that each process gives, with the process as the unit of replication; status, memory and drift are exact
or repeatable and are compared as they stand. False regressions of latency are held to about 1 % a gate where the
processes of both sides are draws of one distribution, five or more a side; what the machine does between the two sides
is not in it. Unlike machines and builds are refused, unlike figures set aside by name.
"""

from precision_eval.gate.judging import FigureChange, GateResult, Margins, compare_sides
from precision_eval.gate.paired import PAIRED_MARGINS, PairFigures, SideFigures, judge_pairs, split_by_look
from precision_eval.gate.sides import GateCell, GateFigure, Side, open_sides
from precision_eval.gate.summary import markdown, to_json

__all__ = [
    "PAIRED_MARGINS",
    "FigureChange",
    "GateCell",
    "GateFigure",
    "GateResult",
    "Margins",
    "PairFigures",
    "Side",
    "SideFigures",
    "compare_sides",
    "judge_pairs",
    "markdown",
    "open_sides",
    "split_by_look",
    "to_json",
]
