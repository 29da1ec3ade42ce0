"""The choice bench: what counts as agreement, what it makes of the processes of re-runs, and that it can fail."""

from dataclasses import asdict

import made_groups as made
import numpy as np
import pytest

from precision_eval.results.choose import Constraints, choose_from
from validation.choose import (
    EXPERIMENT,
    Said,
    answer_of,
    answers,
    answers_of,
    cases_of,
    group_of,
    outcome_of,
    rival_answers,
    shares,
)


def outright(fix):
    return Said(fix, frozenset(() if fix is None else (fix,)), False)


def tie(fix, *others):
    return Said(fix, frozenset((fix, *others)), True)


def perhaps(fix):
    return Said(fix, frozenset((fix,)), True, may_be_none=True)


@pytest.mark.parametrize(
    ("first", "second", "word"),
    [
        (outright("a"), outright("a"), "same"),
        (outright("a"), outright("b"), "differs"),
        (outright("a"), tie("b", "a"), "tie"),
        (outright("a"), tie("b", "c"), "differs"),  # a tie that does not name the other is no agreement
        (tie("a", "b"), tie("b", "a"), "tie"),
        (outright(None), outright("a"), "differs"),
        (outright(None), perhaps("a"), "tie"),
        (outright(None), tie("a", "b"), "differs"),  # all of these surely keep the limits
        (outright(None), outright(None), "same"),
    ],
)
def test_agreement(first, second, word):
    assert outcome_of(first, second) == outcome_of(second, first) == word


@pytest.mark.parametrize(("edge", "may_be_none"), [(0.9, False), (1.0, True), (1.2, None)])
def test_only_limits_within_noise_may_leave_nothing(edge, may_be_none):
    one = case(runs=1, noise=0.02)
    limits = Constraints(min_speed=edge, max_memory_ratio=0.6, max_drift=2e-3)  # float16 alone, as fast as the baseline
    found = answer_of(choose_from(group_of(one["exact"], one["runs"][0]), limits, policy="speed"))
    assert found.fix == (None if may_be_none is None else "float16")
    assert found.may_be_none == bool(may_be_none)


def test_shares_by_hand():
    case = [[outright("a")], [outright("a")], [tie("b", "a")], [outright("c")]]  # 6 pairs: 1 same, 2 tie, 3 differ
    found = shares([case], rng=np.random.default_rng(0), resamples=50)
    assert found["agree"][0] == pytest.approx(3 / 6)
    assert found["same"][0] == pytest.approx(1 / 6)
    assert found["ties"][0] == pytest.approx(1 / 4)
    assert found["agree"][1] <= 0.5 <= found["agree"][2]


FIXES = {"full_float32": (1.0, 1e-6, 64), "float16": (0.99, 1e-3, 32), "bfloat16": (0.5, 1e-2, 32)}


def record(fix, measure, data, **when):
    return asdict(made.record(fix, measure, data, case="w", size="s", **when))


def case(*, runs, noise):
    """Re-runs of three fixes, one of them as fast as the baseline but for noise between four processes."""
    rng = np.random.default_rng(0)
    exact = []
    for fix, (_, drift, memory) in FIXES.items():
        exact.append(record(fix, "drift", {"relative_error": drift}))
        exact.append(record(fix, "memory", {"storage_bytes": memory, "allocated_peak_bytes": 0}))
    timed = [
        [
            record(
                fix,
                "latency",
                made.latency((ratio * np.exp(noise * rng.normal(size=4))).tolist(), verdict="undecided"),
                started_at=f"2026-01-01T00:{run:02}:00+00:00",
            )
            for fix, (ratio, _, _) in FIXES.items()
        ]
        for run in range(runs)
    ]
    return {"exact": exact, "runs": timed}


def test_the_engine_agrees_with_itself_and_a_rival_without_intervals_does_not():
    one = case(runs=12, noise=0.02)
    rng = np.random.default_rng(1)
    ours = shares([answers_of(one, answers)], rng=rng, resamples=20)
    theirs = shares([answers_of(one, rival_answers)], rng=rng, resamples=20)
    assert ours["agree"][0] > 0.97
    assert theirs["agree"][0] < ours["agree"][0] - 0.03  # the figure can fail: the rival fails it
    assert 0.0 < ours["ties"][0] < 0.6  # and it is not reached by calling everything a tie


def test_lines_of_another_campaign_are_not_mixed(tmp_path):
    one = case(runs=2, noise=0.01)
    found = {"r1": one["runs"][1], "exact": one["exact"], "r0": one["runs"][0]}
    lines = [{"key": f"w/s/{what}@e/1s/5p", "case": ["w", "s", what], "records": rows} for what, rows in found.items()]
    assert cases_of(lines, "e/1s/4p") == {}
    assert cases_of(lines, "e/1s/5p") == {"w/s": one}
    content = EXPERIMENT.summary(lines, EXPERIMENT.options({}, out=tmp_path, report=True))
    assert content["campaign"] == "e/1s/5p"
    assert [figure.met is None for figure in EXPERIMENT.figures(content)] == [False, True, True, True]
    assert len(content["cases"]) == 18
    assert EXPERIMENT.summary(lines[:1], EXPERIMENT.options({}, out=tmp_path)) is None
