"""torch.utils.benchmark: ``Timer.blocked_autorange`` on each call, and two ways to read the pair.

Conventions: half of the budget each, baseline first, one thread. The tool itself draws no conclusion. *Disjoint IQRs*
reads what a ``Measurement`` prints: the candidate differs where the two interquartile ranges do not overlap.
*Compare* reads what its table shows with ``colorize``: the fastest median, and any within 1 % of it or within 100 ns,
are coloured best by ``_Row.color_segment``; the candidate is slower where it is not coloured best beside the
baseline.
"""

from __future__ import annotations

from typing import Any

from validation.timing.calls import Call
from validation.timing.tools import Judged, say


def judge(base: Call, candidate: Call, *, budget_s: float, seed: int) -> Judged:
    """Measure both with ``blocked_autorange`` and read the pair; the tool takes no seed."""
    return compared(_measured(base, budget_s / 2), _measured(candidate, budget_s / 2))


def _measured(call: Call, seconds: float) -> Any:
    from torch.utils.benchmark import Timer

    return Timer(stmt="call()", globals={"call": call}, num_threads=1).blocked_autorange(min_run_time=seconds)


def compared(base: Any, candidate: Any) -> Judged:
    """Read a pair of measurements."""
    base_q1, base_q3 = _quartiles(base)
    cand_q1, cand_q3 = _quartiles(candidate)
    best = min(base.median, candidate.median)
    return Judged(
        said={
            "torch_iqr": say(slower=cand_q1 > base_q3, faster=cand_q3 < base_q1),
            "torch_compare": say(
                slower=not _coloured_best(candidate.median, best), faster=not _coloured_best(base.median, best)
            ),
        },
        ratio=candidate.median / base.median,
        base_s=base.median,
        extra={"samples": len(base.raw_times)},
    )


def _quartiles(measurement: Any) -> tuple[float, float]:
    """Return the 25th and 75th percentile that the measurement prints, seconds per call."""
    _ = measurement.median  # computes the others
    return measurement._p25, measurement._p75


def _coloured_best(median_s: float, best_s: float) -> bool:
    """Say whether ``Compare`` would print this median in the colour of the best."""
    from torch.utils.benchmark.utils import compare

    coloured: str = compare._Row.color_segment("x", median_s, best_s)
    return coloured.startswith(compare.BEST)
