"""Rivals' rules on synthetic samples, and every judge once on real calls."""

import pytest
from torch.utils.benchmark import Measurement
from torch.utils.benchmark.utils.common import TaskSpec

from validation.latency import rivals


def samples(centre, spread=0.001, n=30):
    """Return n values from centre·(1 − spread) to centre·(1 + spread), evenly."""
    return [centre * (1 + spread * (2 * i / (n - 1) - 1)) for i in range(n)]


@pytest.mark.parametrize(
    ("base", "candidate", "at_1_1", "at_1_01"),
    [
        (1.0, 1.2, "slower", "slower"),
        (1.0, 1.05, "same", "slower"),  # the default factor cannot see 5 %
        (1.0, 1.005, "same", "same"),
        (1.0, 1.0, "same", "same"),
        (1.05, 1.0, "same", "faster"),
        (1.2, 1.0, "faster", "faster"),
    ],
)
def test_asv_needs_its_factor(base, candidate, at_1_1, at_1_01):
    judged = rivals.asv_compared(samples(base), samples(candidate))
    assert judged.said == {"asv_1.1": at_1_1, "asv_1.01": at_1_01}
    assert judged.ratio == pytest.approx(candidate / base)


def test_asv_needs_its_test_too():
    wide = {"spread": 0.9}
    assert rivals.asv_compared(samples(1.0, **wide), samples(1.2, **wide)).said["asv_1.1"] == "same"
    few = {"n": 3}  # too few for its test, so it compares intervals, and these are far apart
    assert rivals.asv_compared(samples(1.0, **few), samples(1.5, **few)).said["asv_1.1"] == "slower"


@pytest.mark.parametrize(("ratio", "word"), [(1.0, "same"), (1.019, "same"), (1.021, "slower"), (0.97, "faster")])
def test_pytest_benchmark_checks_its_median(ratio, word):
    judged = rivals.pytest_compared({"median": 2.0, "rounds": 7}, {"median": 2.0 * ratio, "rounds": 7})
    assert judged.said == {"pytest_median_2": word}
    assert judged.ratio == pytest.approx(ratio)


def measurement(times):
    return Measurement(number_per_run=2, raw_times=[2 * t for t in times], task_spec=TaskSpec("call()", "pass"))


@pytest.mark.parametrize(
    ("centre", "spread", "word"),
    [(1.0, 0.1, "same"), (1.03, 0.1, "same"), (1.005, 0.001, "slower"), (0.9, 0.001, "faster")],
)
def test_torch_needs_disjoint_quartiles(centre, spread, word):
    judged = rivals.torch_compared(measurement(samples(1.0, spread)), measurement(samples(centre, spread)))
    assert judged.said == {"torch_iqr": word}
    assert judged.base_s == pytest.approx(1.0)


@pytest.mark.parametrize(("ratio", "word"), [(1.01, "slower"), (0.99, "faster"), (1.0, "same")])
def test_the_t_test_has_an_interval_about_its_ratio(ratio, word):
    judged = rivals.ttest_compared(samples(2.0), samples(2.0 * ratio))
    assert judged.said == {"ttest_0.01": word}
    assert (judged.low + judged.high) / 2 == pytest.approx(judged.ratio) == pytest.approx(ratio)
    assert (judged.low <= 1.0 <= judged.high) == (word == "same")


@pytest.mark.parametrize("tool", rivals.TOOLS)
def test_every_judge_judges_real_calls(tool):
    data = list(range(2000))
    judged = rivals.TOOLS[tool](lambda: sum(data), lambda: sum(data), budget_s=0.1, seed=1)
    assert set(judged.said) <= set(rivals.RULES)
    assert set(judged.said.values()) <= {"faster", "slower", "same", "equivalent", "undecided"}
    assert judged.ratio > 0
    assert judged.base_s > 0
