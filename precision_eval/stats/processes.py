"""One ratio out of several processes: what a process fixes for its lifetime becomes part of the uncertainty.

Conventions: each process gives a ratio; its memory layout and allocation are one draw, so the processes and not their
blocks are the independent units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from precision_eval.core.errors import ParameterError
from precision_eval.core.formatting import grouped
from precision_eval.stats.paired import PairedRatio, judgement
from precision_eval.stats.sequential import EQUIVALENCE_ALPHA, student_quantile


def over_processes(ratios: Sequence[PairedRatio], *, candidates: int = 1) -> PairedRatio:
    """Combine the ratios of one candidate from several processes."""
    if len(ratios) < 2:
        raise ParameterError(f"{len(ratios)} processes; at least 2 are needed to see how they differ")
    first = ratios[0]
    logs = np.log([ratio.ratio for ratio in ratios])
    n = len(ratios)
    faults = [ratio.page_faults_per_call for ratio in ratios if ratio.page_faults_per_call is not None]
    within = math.sqrt(sum(_squared_error(ratio) for ratio in ratios)) / n
    error = max(float(logs.std(ddof=1)) / math.sqrt(n), within)
    estimate = float(logs.mean())
    half = student_quantile(1.0 - first.confidence, n - 1) * error
    return replace(
        first,
        **judgement(
            estimate,
            error,
            n - 1,
            margin=first.margin,
            direction_error=first.error_rate / candidates,
            equivalence_error=EQUIVALENCE_ALPHA,
            elapsed_s=sum(ratio.elapsed_s for ratio in ratios),
        ),
        ratio_low=math.exp(estimate - half),
        ratio_high=math.exp(estimate + half),
        median_s=float(np.median([ratio.median_s for ratio in ratios])),
        baseline_median_s=float(np.median([ratio.baseline_median_s for ratio in ratios])),
        blocks=sum(ratio.blocks for ratio in ratios),
        block_median_s=tuple(chain.from_iterable(ratio.block_median_s for ratio in ratios)),
        baseline_block_median_s=tuple(chain.from_iterable(ratio.baseline_block_median_s for ratio in ratios)),
        doubts=_doubts(ratios),
        clock="/".join(sorted({ratio.clock for ratio in ratios})),
        preempted_fraction=float(np.mean([ratio.preempted_fraction for ratio in ratios])),
        page_faults_per_call=float(np.median(faults)) if faults else None,
        process_ratios=tuple(ratio.ratio for ratio in ratios),
        placement_ratios=tuple(chain.from_iterable(ratio.placement_ratios for ratio in ratios)),
    )


def _squared_error(ratio: PairedRatio) -> float:
    """Squared standard error of one process's log-ratio, from its interval."""
    half = (math.log(ratio.ratio_high) - math.log(ratio.ratio_low)) / 2.0
    units = len(ratio.placement_ratios) or ratio.blocks
    return (half / student_quantile(1.0 - ratio.confidence, units - 1)) ** 2


def _doubts(ratios: Sequence[PairedRatio]) -> tuple[str, ...]:
    """Doubts of the processes, each with the number of processes that raise its kind."""
    kinds = grouped((doubt.split(":")[0], doubt) for ratio in ratios for doubt in ratio.doubts)
    return tuple(f"in {len(doubts)} of {len(ratios)} processes: {doubts[0]}" for doubts in kinds.values())
