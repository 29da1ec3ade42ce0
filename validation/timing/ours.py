"""The suite's own verdict on a pair, through the public function."""

from __future__ import annotations

from validation.timing.calls import Call
from validation.timing.tools import Judged

_DOUBT_CHARACTERS = 32


def judge(base: Call, candidate: Call, *, budget_s: float, seed: int) -> Judged:
    """Compare the two with the settings a user gets by default; only the budget and the seed are given."""
    from precision_eval.measure.latency import compare_latency

    result = compare_latency({"base": base, "cand": candidate}, baseline="base", budget_s=budget_s, seed=seed)["cand"]
    return Judged(
        said={"ours": result.verdict},
        ratio=result.ratio,
        low=result.ratio_low,
        high=result.ratio_high,
        base_s=result.baseline_median_s,
        extra={
            "mde": result.minimum_detectable_effect,
            "clock": result.clock,
            "blocks": result.blocks,
            "doubts": [doubt.split(":")[0][:_DOUBT_CHARACTERS] for doubt in result.doubts],
        },
    )
