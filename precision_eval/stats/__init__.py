"""Statistics of the evaluation: numpy arrays in, small frozen results out.

Conventions: times are seconds, ratios are candidate over baseline (below 1 = faster), intervals are two-sided with the
stated confidence, and everything that draws at random takes a seed and repeats exactly. No sample is ever dropped.
"""

from precision_eval.stats.doubts import MIN_BLOCKS, kendall_trend, series_doubts, two_cluster_split
from precision_eval.stats.intervals import (
    Interval,
    block_bootstrap_mean,
    bootstrap_interval,
    trimmed_mean,
    wilson_interval,
)
from precision_eval.stats.paired import (
    ERROR_RATE,
    PairedRatio,
    minimum_detectable_effect,
    paired_log_ratios,
    paired_ratio,
)
from precision_eval.stats.processes import over_processes
from precision_eval.stats.robust import Location, one_step_interval, student_location
from precision_eval.stats.sequential import (
    EQUIVALENCE_ALPHA,
    LOOKS,
    VERDICTS,
    Verdict,
    decide,
    look_errors,
    spent,
    student_quantile,
)
from precision_eval.stats.survival import (
    MedianSurvival,
    Survival,
    kaplan_meier,
    median_survival,
)

__all__ = [
    "EQUIVALENCE_ALPHA",
    "ERROR_RATE",
    "LOOKS",
    "MIN_BLOCKS",
    "VERDICTS",
    "Interval",
    "Location",
    "MedianSurvival",
    "PairedRatio",
    "Survival",
    "Verdict",
    "block_bootstrap_mean",
    "bootstrap_interval",
    "decide",
    "kaplan_meier",
    "kendall_trend",
    "look_errors",
    "median_survival",
    "minimum_detectable_effect",
    "one_step_interval",
    "over_processes",
    "paired_log_ratios",
    "paired_ratio",
    "series_doubts",
    "spent",
    "student_location",
    "student_quantile",
    "trimmed_mean",
    "two_cluster_split",
    "wilson_interval",
]
