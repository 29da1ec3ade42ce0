"""pytest-benchmark as installed: its own fixture, statistics and ``--benchmark-compare-fail`` checks.

Conventions: the plugin's ``BenchmarkFixture`` is made with the options that its command line defaults to, except
``--benchmark-max-time``, which is half of the budget. Calibration, rounds and statistics are its own code; only the
test item around them is a stub library. The baseline runs first, the candidate after it, as with a saved run and a
later one; that both are one process here spares the tool the variation between processes.
``--benchmark-compare-fail`` is one-sided: it fails a run that got slower. For *faster* the same check is asked with
the two exchanged. Given twice on its command line, that option keeps its last value only; here each value is judged
on its own.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from validation.timing.calls import Call
from validation.timing.tools import Judged, installed, say

CHECKS = {"pytest_median_2": "median:2%", "pytest_min_5": "min:5%"}

_DEFAULTS: dict[str, Any] = {
    "disable_gc": False,
    "min_rounds": 5,
    "min_time": 0.000005,
    "precision": None,
    "confidence": 0.99,
    "warmup": False,
    "warmup_iterations": 100_000,
    "calibration_precision": 10,
    "disabled": False,
    "cprofile": False,
    "cprofile_loops": None,
    "cprofile_dump": False,
}


def judge(base: Call, candidate: Call, *, budget_s: float, seed: int) -> Judged:
    """Run both through the fixture, baseline first, and apply the checks; the tool takes no seed."""
    return compared(_benchmarked(base, max_time_s=budget_s / 2), _benchmarked(candidate, max_time_s=budget_s / 2))


def _benchmarked(call: Call, *, max_time_s: float) -> Any:
    """Return the fixture's own record of one benchmark."""
    utils = installed("pytest_benchmark.utils")
    timers = installed("pytest_benchmark.timers")
    fixture = installed("pytest_benchmark.fixture").BenchmarkFixture(
        SimpleNamespace(name="test_call", nodeid="test_call"),
        timer=utils.NameWrapper(timers.default_timer),
        max_time=max_time_s,
        add_stats=lambda stats: None,
        logger=SimpleNamespace(debug=lambda *args, **kwargs: None),
        warner=lambda warning: None,
        **_DEFAULTS,
    )
    fixture(call)
    return fixture.stats


def compared(base: Any, candidate: Any) -> Judged:
    """Apply the checks to two records."""
    parse = installed("pytest_benchmark.utils").parse_compare_fail
    said = {}
    for rule, text in CHECKS.items():
        check = parse(text)
        said[rule] = say(slower=bool(check.fails(candidate, base)), faster=bool(check.fails(base, candidate)))
    return Judged(
        said=said,
        ratio=candidate["median"] / base["median"],
        base_s=base["median"],
        extra={"samples": base["rounds"]},
    )
