"""Statistics of the evaluation: numpy arrays in, small frozen results out.

Conventions: times are seconds, ratios are candidate over baseline (below 1 = faster), intervals are two-sided with the
stated confidence, and everything that draws at random takes a seed and repeats exactly. No sample is ever dropped.
"""

from precision_eval.stats.doubts import MIN_BLOCKS
from precision_eval.stats.intervals import CONFIDENCE, Interval, bootstrap_interval, wilson_interval
from precision_eval.stats.paired import ERROR_RATE, PairedRatio, paired_log_ratios, paired_ratio
from precision_eval.stats.processes import over_processes
from precision_eval.stats.robust import Location, student_location
from precision_eval.stats.sequential import EQUIVALENCE_ALPHA, LOOKS, decide, look_errors, student_quantile
from precision_eval.stats.survival import kaplan_meier

__all__ = [
    "CONFIDENCE",
    "EQUIVALENCE_ALPHA",
    "ERROR_RATE",
    "LOOKS",
    "MIN_BLOCKS",
    "Interval",
    "Location",
    "PairedRatio",
    "bootstrap_interval",
    "decide",
    "kaplan_meier",
    "look_errors",
    "over_processes",
    "paired_log_ratios",
    "paired_ratio",
    "student_location",
    "student_quantile",
    "wilson_interval",
]
