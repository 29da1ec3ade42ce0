"""Statistics of the evaluation: numpy arrays in, small frozen results out.

Conventions: times are seconds, ratios are candidate over baseline (below 1 = faster), intervals are two-sided with the
stated confidence, and everything that draws at random takes a seed and repeats exactly. No sample is ever dropped.

Contents
--------
intervals
    :class:`Interval`, :func:`trimmed_mean`, :func:`bootstrap_interval`, :func:`block_bootstrap_mean`,
    :func:`wilson_interval`.
paired
    :class:`PairedRatio`, :func:`paired_ratio`, :func:`verdict`, :func:`minimum_detectable_effect`.
doubts
    :func:`series_doubts` and what it is made of: :func:`kendall_trend`, :func:`two_cluster_split`.
survival
    :class:`Survival`, :func:`kaplan_meier`.

This package imports numpy and the errors only, so that every measure can use it.
"""

from .doubts import MIN_BLOCKS, kendall_trend, series_doubts, two_cluster_split
from .intervals import Interval, block_bootstrap_mean, bootstrap_interval, trimmed_mean, wilson_interval
from .paired import PairedRatio, Verdict, minimum_detectable_effect, paired_log_ratios, paired_ratio, verdict
from .survival import Survival, kaplan_meier

__all__ = [
    "MIN_BLOCKS",
    "Interval",
    "PairedRatio",
    "Survival",
    "Verdict",
    "block_bootstrap_mean",
    "bootstrap_interval",
    "kaplan_meier",
    "kendall_trend",
    "minimum_detectable_effect",
    "paired_log_ratios",
    "paired_ratio",
    "series_doubts",
    "trimmed_mean",
    "two_cluster_split",
    "verdict",
    "wilson_interval",
]
