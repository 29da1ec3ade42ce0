"""Verdicts on made figures of base and head in the same processes."""

import math
import re

import numpy as np
import pytest
from scipy import stats

from precision_eval.core.errors import ParameterError, UnknownNameError
from precision_eval.gate import GateCell, Margins, PairFigures, SideFigures, judge_pairs
from precision_eval.gate.judging import GATE_ERROR, split_by_look

FIXES = tuple("abcdefghij")


def cell(fix="a"):
    return GateCell("case.py:f", fix, "eager", "own", "cpu")


def pairs(change=0.0, *, scatter=0.002, processes=10, seed=0, within=0.001, base=None, head=None):
    """Processes whose log-ratios scatter about a change; `base` and `head` are figures of the sides."""
    logs = math.log1p(change) + scatter * np.random.default_rng(seed).standard_normal(processes)
    return [
        PairFigures(
            base=SideFigures(seconds=1e-3, **(base or {})),
            head=SideFigures(seconds=1e-3 * math.exp(log), **(head or {})),
            log_ratio=float(log),
            standard_error=within,
            budget_s=0.5,
        )
        for log in logs
    ]


def judged(measured, **options):
    return judge_pairs(measured, names=("main", "HEAD"), machine={}, **{"margins": Margins(), **options})


def change_of(result, metric="latency", fix="a"):
    (change,) = [change for change in result.changes if (change.metric, change.place.fix) == (metric, fix)]
    return change


def verdict(result, metric="latency", fix="a"):
    return change_of(result, metric, fix).verdict


RAISES, PASSES = {"status": "raised"}, {"status": "passed"}


@pytest.mark.parametrize(("base", "head"), [(RAISES, PASSES), (RAISES, RAISES), (PASSES, PASSES), (PASSES, RAISES)])
@pytest.mark.parametrize("are_defaults", [False, True])
@pytest.mark.parametrize(("change", "scatter"), [(0.05, 0.002), (0.0, 0.05)])
def test_what_a_cure_costs_a_fix_that_nobody_named_is_shown(base, head, are_defaults, change, scatter):
    shipped = [PairFigures(base=SideFigures(**base), head=SideFigures(**head)) for _ in range(10)]
    measured = {cell("as_shipped"): shipped, cell("full_float32"): pairs(change, scatter=scatter)}
    result = judged(measured, are_defaults=are_defaults)
    is_cured = (base, head) == (RAISES, PASSES)
    is_shown = is_cured and are_defaults
    assert (verdict(result, fix="full_float32") == "shown") == is_shown
    assert bool(result.fixed) == is_cured
    assert (result.outcome == "no regression") == is_shown
    undecided, _ = split_by_look(result)
    assert bool(undecided) == (not change and not is_shown)  # nothing more is measured of what is not judged


@pytest.mark.parametrize(("change", "expected"), [(0.0, "no worse"), (0.05, "regression"), (-0.05, "improvement")])
def test_latency_of_ten_fixes(change, expected):
    result = judged({cell(fix): pairs(change, seed=seed) for seed, fix in enumerate(FIXES)})
    assert {verdict(result, fix=fix) for fix in FIXES} == {expected}
    assert result.outcome == ("regression" if change > 0 else "no regression")
    assert any("every fix of case.py:f" in doubt for doubt in result.doubts) == (change > 0)


def two_looks(change, seed, *, scatter, changed=FIXES, first=6, further=6):
    """Judge ten cells, some of them changed, as the gate does: in one look, and in a second."""
    all_pairs = {
        cell(fix): pairs(
            change * (fix in changed), scatter=scatter, processes=first + further, seed=(seed, i), within=0.0
        )
        for i, fix in enumerate(FIXES)
    }
    one = judged({place: of[:first] for place, of in all_pairs.items()})
    undecided, settled = split_by_look(one)
    both = judged({p: of if p in undecided else of[:first] for p, of in all_pairs.items()}, settled=settled)
    return one, both


def test_an_unchanged_tree_is_red_in_at_most_one_gate_of_a_hundred():
    """Both looks together, each cell changed by the margin itself, the worst of what counts as none."""
    allowed = 11
    assert stats.binom.sf(allowed, 500, GATE_ERROR) < 0.007
    gates = [two_looks(Margins().latency, seed, scatter=0.003)[1] for seed in range(500)]
    assert sum(result.outcome == "regression" for result in gates) <= allowed


def test_a_gate_that_errs_ten_times_as_often_would_be_seen(monkeypatch):
    monkeypatch.setattr("precision_eval.gate.judging.GATE_ERROR", 0.4)
    gates = [two_looks(Margins().latency, seed, scatter=0.003)[1] for seed in range(100)]
    assert sum(result.outcome == "regression" for result in gates) > 11


def test_a_second_look_finds_what_one_leaves_undecided():
    looks = [two_looks(0.015, seed, scatter=0.004, changed="a") for seed in range(40)]
    once, twice = (sum(verdict(look[which]) == "regression" for look in looks) for which in (0, 1))
    assert once < 0.5 * len(looks) < 0.75 * len(looks) <= twice


def test_what_the_first_look_settled_stays():
    result = judged({cell("a"): pairs(0.05), cell("b"): pairs(scatter=0.03)})
    undecided, settled = split_by_look(result)
    assert (undecided, {change.place for change in settled}) == ({cell("b")}, {cell("a")})
    again = judged({cell("a"): pairs(scatter=0.5), cell("b"): pairs(scatter=1e-4, processes=60)}, settled=settled)
    assert (verdict(again, fix="a"), verdict(again, fix="b")) == ("regression", "no worse")
    assert split_by_look(judged({cell(): pairs(scatter=0.03)}, required=("status",)))[0] == frozenset()


@pytest.mark.parametrize(
    ("change", "half", "expected"),
    [
        (0.0, 0.0095, "no worse"),  # half as wide again as 0.5 %: with one margin it would be undecided
        (0.0, 0.0105, "undecided"),
        (0.006, 0.003, "no worse"),  # above what alarms, but not surely; surely below what clears
        (0.0075, 0.0001, "regression"),  # surely between the two: an alarm goes first
        (0.010, 0.004, "undecided"),  # of a family of ten, 97.5 % do not alarm
    ],
)
def test_one_margin_alarms_and_another_clears(change, half, expected):
    """Half the interval is 2.241 standard errors, a look of two, of very many processes, all of one scatter."""
    each = 400
    logs = math.log1p(change) + half / 2.241 * math.sqrt(each - 1) * np.resize([1.0, -1.0], each)
    side = SideFigures(seconds=1e-3)
    made = [PairFigures(base=side, head=side, log_ratio=float(log)) for log in logs]
    result = judged({cell(fix): made for fix in FIXES})
    assert {verdict(result, fix=fix) for fix in FIXES} == {expected}


@pytest.mark.parametrize(
    "margins", [{"latency": 0.005, "clear": 0.001}, {"latency": 1.0}, {"memory": -0.1}, {"drift": 0.5}]
)
def test_margins_out_of_range_are_refused(margins):
    with pytest.raises(ParameterError, match="margin"):
        Margins(**margins)


def test_the_effort_that_is_advised_settles_unchanged_cells():
    """In nine of ten trials, by a binomial bound; where no effort does, a margin is advised."""
    settled = advised = 0
    for seed in range(60):
        note = change_of(judged({cell(): pairs(scatter=0.007, processes=6, seed=seed, within=0.0)})).note
        if effort := re.search(r"--set processes=(\d+) --set budget=[\d.]+ settles", note):
            advised += 1
            more = pairs(scatter=0.007, processes=int(effort[1]), seed=1000 + seed, within=0.0)
            settled += verdict(judged({cell(): more})) == "no worse"
    assert advised > 15
    assert settled >= stats.binom.ppf(0.005, advised, 0.9)
    note = change_of(judged({cell(): pairs(scatter=0.2)})).note
    assert re.match(r"this machine cannot detect so small a change; it can with --set margin_latency=[\d.]+%", note)


def test_undecided_is_not_green():
    result = judged({cell(): pairs(scatter=0.03)})
    assert (result.outcome, result.gaps) == ("could not tell", ("latency is undecided",))
    assert judged({cell(): pairs(scatter=0.03)}, required=("status",)).outcome == "no regression"


RAISED = {"status": "raised", "reason": "RuntimeError: dtype"}


@pytest.mark.parametrize(
    ("base", "head", "expected", "outcome"),
    [
        ({}, RAISED, "regression", "regression"),
        (RAISED, {}, "improvement", "no regression"),
        (RAISED, {"status": "non_finite"}, "shown", "could not tell"),
        (RAISED, RAISED, "no worse", "could not tell"),
    ],
)
def test_a_status(base, head, expected, outcome):
    result = judged({cell(): [PairFigures(base=SideFigures(**base), head=SideFigures(**head))] * 2})
    assert (verdict(result, "status"), result.outcome) == (expected, outcome)


@pytest.mark.parametrize(
    ("head", "metric", "expected"),
    [
        ({"peak_bytes": 1005, "stored_bytes": 0}, "peak_bytes", "no worse"),
        ({"peak_bytes": 1020, "stored_bytes": 0}, "peak_bytes", "regression"),
        ({"peak_bytes": 900, "stored_bytes": 0}, "peak_bytes", "improvement"),
        ({"peak_bytes": 1000, "stored_bytes": 1}, "stored_bytes", "regression"),
    ],
)
def test_memory_is_exact_up_to_its_margin(head, metric, expected):
    base = {"peak_bytes": 1000, "stored_bytes": 0}
    assert verdict(judged({cell(): pairs(base=base, head=head)}), metric) == expected


@pytest.mark.parametrize(
    ("base", "head", "expected"),
    [
        (1e-3, 1e-3, "no worse"),
        (1e-3, 1.2e-3, "regression"),
        (1.2e-3, 1e-3, "improvement"),
        (0.0, 1e-9, "regression"),
        (0.0, 0.0, "no worse"),
        (1e-9, 0.0, "improvement"),
    ],
)
def test_drift(base, head, expected):
    assert verdict(judged({cell(): pairs(base={"drift": base}, head={"drift": head})}), "drift") == expected


def test_drift_that_scatters_over_seeds_is_undecided():
    heads = (5e-4, 2e-3, 1.5e-3)
    measured = [PairFigures(base=SideFigures(drift=1e-3), head=SideFigures(drift=head)) for head in heads]
    assert verdict(judged({cell(): measured}), "drift") == "undecided"


def test_what_is_required_must_have_a_verdict():
    with pytest.raises(UnknownNameError, match="kind of figures 'speed'"):
        judged({cell(): pairs()}, required=("speed",))
    result = judged({cell(): pairs()}, required=("latency", "drift"))
    assert (result.outcome, result.gaps) == ("could not tell", ("no verdict on drift",))
    assert judged({}, unchanged=("case.py:f",)).outcome == "no regression"
    assert judged({cell(): pairs()}, unchanged=("case.py:g",), required=("drift",)).outcome == "could not tell"
