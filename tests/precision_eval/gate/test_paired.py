"""Verdicts on made figures of base and head in the same processes."""

import math

import numpy as np
import pytest

from precision_eval.core.errors import ParameterError, UnknownNameError
from precision_eval.gate import (
    PAIRED_MARGINS,
    GateCell,
    Margins,
    PairFigures,
    SideFigures,
    judge_pairs,
    markdown,
    split_by_look,
    to_json,
)

FIXES = tuple("abcdefghij")


def cell(fix="a"):
    return GateCell("case.py:f", fix, "eager", "own", "cpu")


def pairs(change=0.0, *, scatter=0.003, processes=6, seed=0, within=0.001, base=None, head=None):
    """Processes whose log-ratios scatter about a change; `base` and `head` are figures of the sides."""
    logs = math.log1p(change) + scatter * np.random.default_rng(seed).standard_normal(processes)
    return [
        PairFigures(
            base=SideFigures(seconds=1e-3, **(base or {})),
            head=SideFigures(seconds=1e-3 * math.exp(log), **(head or {})),
            log_ratio=float(log),
            standard_error=within,
            elapsed_s=0.7,
        )
        for log in logs
    ]


def judged(measured, **options):
    return judge_pairs(measured, names=("main", "HEAD"), remarks=({}, {}), **options)


def verdict(result, metric="latency", fix="a"):
    (change,) = [one for one in result.changes if (one.metric, one.place.fix) == (metric, fix)]
    return change.verdict


@pytest.mark.parametrize(("change", "expected"), [(0.0, "no worse"), (0.05, "regression"), (-0.05, "improvement")])
def test_latency_of_ten_fixes(change, expected):
    measured = {cell(fix): pairs(change, seed=seed) for seed, fix in enumerate(FIXES)}
    result = judged(measured)
    assert {verdict(result, fix=fix) for fix in FIXES} == {expected}
    assert result.outcome == ("regression" if change > 0 else "no regression")
    assert any("every fix of case.py:f" in doubt for doubt in result.doubts) == (change > 0)


def test_the_anchors_ratios_are_shown_and_not_judged():
    """Both sides take half as long again as the anchor, head a tenth more: shown as such, with no verdict."""
    both = {"base": {"to_anchor": 1.5}, "head": {"to_anchor": 1.65}}
    result = judged({cell(): pairs(**both)})
    assert verdict(result, "latency_to_anchor") == "shown"
    assert "| latency_to_anchor | 1.5 | 1.65 | +10.00 % |" in markdown(result)
    assert (result.outcome, result.not_compared) == ("no regression", judged({cell(): pairs()}).not_compared)


def test_equal_sides_are_rarely_called_worse():
    alarms = sum(
        judged({cell(fix): pairs(seed=100 * gate + i, within=0.0) for i, fix in enumerate(FIXES)}).failed
        for gate in range(100)
    )
    assert alarms <= 3


def two_looks(change, seed, *, scatter=0.0027, first=5, further=5):
    """Judge ten cells of one scatter, the first of them changed, as the gate does: in one look, and in a second."""
    all_pairs = {
        cell(fix): pairs(change * (fix == "a"), scatter=scatter, processes=first + further, seed=(seed, i), within=0.0)
        for i, fix in enumerate(FIXES)
    }
    one = judged({place: own[:first] for place, own in all_pairs.items()})
    undecided, settled = split_by_look(one)
    both = judged({p: own if p in undecided else own[:first] for p, own in all_pairs.items()}, settled=settled)
    return one, both


def test_two_looks_together_alarm_no_more_often_at_what_just_counts_as_none():
    """A change of the margin itself is reported by chance alone: 3 in 300 gates expected at most, 9 is p < 0.004."""
    assert sum(two_looks(PAIRED_MARGINS.latency, seed)[1].failed for seed in range(300)) <= 8


def test_a_second_look_finds_what_one_leaves_undecided():
    looks = [two_looks(0.01, seed) for seed in range(60)]
    once, twice = (sum(verdict(look[which]) == "regression" for look in looks) for which in (0, 1))
    assert once < 0.7 * len(looks) < 0.9 * len(looks) <= twice


def test_what_the_first_look_settled_stands():
    """The second look's figures of a settled cell would be undecided; what required figures left open is measured."""
    result = judged({cell("a"): pairs(0.05), cell("b"): pairs(scatter=0.03)})
    undecided, settled = split_by_look(result)
    assert (undecided, {change.place for change in settled}) == ({cell("b")}, {cell("a")})
    again = judged({cell("a"): pairs(scatter=0.5), cell("b"): pairs(scatter=1e-4, processes=60)}, settled=settled)
    assert (verdict(again, fix="a"), verdict(again, fix="b")) == ("regression", "no worse")
    assert split_by_look(judged({cell(): pairs(scatter=0.03)}, required=("status",)))[0] == frozenset()


def test_noise_of_the_rounds_counts_where_processes_agree_by_chance():
    measured = {cell(): pairs(0.01, scatter=0.0, within=0.05)}
    assert verdict(judged(measured)) == "undecided"
    assert verdict(judged({cell(): pairs(0.01, scatter=0.0, within=0.0)})) == "regression"


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
    margins = Margins(latency=0.005, clear=0.01, drift=1.1)
    each = 400
    logs = math.log1p(change) + half / 2.241 * math.sqrt(each - 1) * np.resize([1.0, -1.0], each)
    side = SideFigures(seconds=1e-3)
    made = [PairFigures(base=side, head=side, log_ratio=float(log), elapsed_s=0.7) for log in logs]
    result = judged({cell(fix): made for fix in FIXES}, margins=margins)
    assert {verdict(result, fix=fix) for fix in FIXES} == {expected}
    assert "latency 0.5 % (cleared below 1 %)" in markdown(result)


def test_one_margin_does_both_and_two_are_in_order():
    """An interval of ±0.8 % about nothing: no worse than 1 %, and undecided where 0.5 % is all that is asked."""
    made = {cell(): pairs(scatter=0.0, within=0.004 * math.sqrt(200), processes=200)}
    assert verdict(judged(made)) == "no worse"
    one = judged(made, margins=Margins(latency=0.005, drift=1.1))
    assert verdict(one) == "undecided"
    assert "cleared" not in markdown(one)
    with pytest.raises(ParameterError, match=r"the margin that clears is 0\.001; expected 0\.005 to below 1"):
        Margins(latency=0.005, clear=0.001)


def test_undecided_says_how_long_would_decide_and_is_not_green():
    result = judged({cell(): pairs(scatter=0.03)})
    assert (result.outcome, result.gaps) == ("could not tell", ("no verdict on latency",))
    (change,) = [one for one in result.changes if one.metric == "latency"]
    assert "s would decide: --processes" in change.note
    assert judged({cell(): pairs(scatter=0.03)}, required=("status",)).outcome == "no regression"
    mixed = judged({cell(): pairs(scatter=0.2, processes=3), cell("b"): pairs(scatter=1e-4, processes=30)})
    assert mixed.gaps == ("an undecided figure is not known to be no worse",)
    assert "1 undecided" in markdown(result).splitlines()[0]


def test_status_memory_and_drift():
    passed, raised = {}, {"status": "raised", "reason": "RuntimeError: dtype"}
    result = judged({cell(): [PairFigures(base=SideFigures(**passed), head=SideFigures(**raised))] * 2})
    assert verdict(result, "status") == "regression"
    same = {"peak_bytes": 1000, "stored_bytes": 0}
    for head, metric, expected in (
        ({"peak_bytes": 1005, "stored_bytes": 0}, "peak_bytes", "no worse"),
        ({"peak_bytes": 1020, "stored_bytes": 0}, "peak_bytes", "regression"),
        ({"peak_bytes": 900, "stored_bytes": 0}, "peak_bytes", "improvement"),
        ({"peak_bytes": 1000, "stored_bytes": 1}, "stored_bytes", "regression"),
    ):
        assert verdict(judged({cell(): pairs(base=same, head=head)}), metric) == expected


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
    assert verdict(judged({cell(): measured}, required=()), "drift") == "undecided"


def test_what_is_required_is_known_and_shown():
    with pytest.raises(UnknownNameError, match="kind of figures 'speed'"):
        judged({cell(): pairs()}, required=("speed",))
    result = judged({cell(): pairs()}, margins=PAIRED_MARGINS)
    assert result.not_compared == ("drift", "memory")
    assert "Both sides ran in the same processes" in markdown(result)
    assert '"paired": true' in to_json(result)
