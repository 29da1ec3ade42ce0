"""The figures of a report, each of one group of a run; a figure that the records do not allow raises ``NotDrawn``."""

from precision_eval.report.figures.bars import draw_memory
from precision_eval.report.figures.over_time import draw_drift, draw_survival
from precision_eval.report.figures.tradeoff import draw_tradeoff

FIGURES = {"tradeoff": draw_tradeoff, "memory": draw_memory, "drift": draw_drift, "survival": draw_survival}
"""Kind, which begins the name of its files, to what draws it."""
