"""Figures from hand-made trials, worked out by hand; a broken judge must show in them."""

import math

import pytest

from validation.latency.figures import all_figures, outcomes
from validation.latency.rivals import Judged
from validation.latency.schedule import TrialSpec
from validation.latency.worker import run_trial


def trial(key, said, ratio=1.0, **more):
    said = said if isinstance(said, dict) else {"ours": said}
    return {"key": key, "said": said, "ratio": ratio, "elapsed_s": 1.0, "others": 0.1, **more}


def figure_named(trials, name):
    (figure,) = (figure for figure in all_figures(outcomes(trials)) if figure.name == name)
    return figure


def same(words, call="200us", load="quiet", **more):
    return [trial(f"ours/{load}/{call}/0/{seed}", word, **more) for seed, word in enumerate(words)]


def slowed(words, delta=0.01, load="quiet", **more):
    return [trial(f"ours/{load}/1ms/{delta:g}/{seed}", word, 1.0 + delta, **more) for seed, word in enumerate(words)]


def test_false_alarms_are_flags_either_way_with_wilsons_interval():
    trials = same(["slower", "faster", *["equivalent"] * 398, *["undecided"] * 400])
    figure = figure_named(trials, "A/A false alarms, quiet")
    z2, n, p = 1.959963985**2, 800, 0.0025
    centre, half = p + z2 / (2 * n), math.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n * n)))
    low, high = ((centre + sign * half) / (1 + z2 / n) for sign in (-1, 1))
    assert figure.found == f"0.2 % [{100 * low:.1f}, {100 * high:.1f}], 2 of 800" == "0.2 % [0.1, 0.9], 2 of 800"
    assert figure.met is True


@pytest.mark.parametrize(
    ("alarms", "n", "met"),
    [
        (0, 100, None),
        (1, 100, None),
        (20, 100, False),
        (0, 210, True),
        (3, 300, False),
        (9, 1000, True),
        (10, 1000, False),  # 1.0 %, with an upper bound of 1.83 %
        (11, 1000, False),
    ],
)
def test_a_rate_of_alarms_is_judged_where_the_trials_can_tell(alarms, n, met):
    trials = same(["faster"] * alarms + ["equivalent"] * (n - alarms))
    assert figure_named(trials, "A/A false alarms, quiet").met is met


def test_power_counts_the_right_sign_only_and_load_by_load():
    trials = slowed(["slower"] * 24 + ["faster"]) + slowed(["undecided"] * 30, load="bursty")
    quiet, bursty = (figure_named(trials, f"flagged slower at +1 %, {load}") for load in ("quiet", "bursty"))
    assert quiet.found.startswith("96.0 % [")
    assert (quiet.met, bursty.met) == (True, False)
    assert figure_named(trials, "slowed called faster, quiet").met is False
    assert figure_named(trials, "slowed called faster, bursty").met is True
    assert figure_named(trials, "left undecided, bursty").found.startswith("100.0 %")
    wrong = figure_named(slowed(["slower"] * 29 + ["equivalent"], delta=0.02), "slowed called equivalent, quiet")
    assert (wrong.found[:5], wrong.met) == ("3.3 %", False)


def test_coverage_is_judged_on_identical_calls_and_shown_on_slowed_ones():
    inside, outside = {"low": 0.99, "high": 1.01}, {"low": 1.001, "high": 1.01}
    trials = same(["equivalent"] * 95, **inside) + same(["equivalent"] * 5, call="5ms", **outside)
    trials += slowed(["slower"] * 30, low=1.011, high=1.02)
    held = figure_named(trials, "95 % interval holds 1 on A/A, quiet")
    assert (held.found[:6], held.met) == ("95.0 %", True)
    other = figure_named(trials, "95 % interval holds the injected slowdown (less certain), quiet")
    assert (other.found[:5], other.met) == ("0.0 %", None)
    assert figure_named(trials[:95], "95 % interval holds 1 on A/A, quiet").met is False  # 100 % is too wide


def test_repeats_are_compared_within_their_own_cell():
    trials = [trial(f"ours/quiet/1ms/0/{i}", "equivalent", ratio) for i, ratio in enumerate([0.999, 1.0, 1.001] * 7)]
    trials += [trial(f"ours/quiet/5ms/0.05/{i}", "slower", ratio) for i, ratio in enumerate([1.04, 1.05, 1.06])]
    figure = figure_named(trials, "independent repeats, quiet")
    assert figure.found.startswith(f"{100 * 22 / 24:.1f} % within")  # 21, and the middle of the other three
    assert figure.met is False
    assert figure_named(trials[:21], "independent repeats, quiet").met is True


def test_rivals_are_compared_with_ours_rule_by_rule():
    words = {"asv_1.1": "same", "asv_1.01": "slower"}
    trials = same(["equivalent"] * 4) + [trial(f"asv/quiet/200us/0/{i}", words) for i in range(3)]
    figure = figure_named(trials, "A/A false alarms, quiet")
    assert figure.rivals["asv, factor 1.1"].startswith("0.0 %")
    assert figure.rivals["asv, factor 1.01"].startswith("100.0 %")
    assert figure_named(trials, "left undecided, quiet").rivals == {}  # no word of theirs
    assert all_figures(outcomes(trials[4:])) == []  # nothing of ours to compare with


def test_a_judge_that_always_says_faster_shows_as_false_alarms():
    def broken(base, candidate, *, budget_s, seed):
        return Judged(said={"ours": "faster"}, ratio=0.9, base_s=1e-3, low=0.89, high=0.91, extra={"mde": 0.001})

    specs = [TrialSpec(tool="ours", load="quiet", call="30us", delta=d, seed=i) for d in (0.0, 0.05) for i in range(30)]
    trials = [run_trial(spec, judge=broken) for spec in specs]
    for name, found in (
        ("A/A false alarms, quiet", "100.0 %"),
        ("slowed called faster, quiet", "100.0 %"),
        ("95 % interval holds 1 on A/A, quiet", "0.0 %"),
        ("flagged slower where the slowdown is at least the reported detectable effect, quiet", "0.0 %"),
    ):
        figure = figure_named(trials, name)
        assert figure.found.startswith(found)
        assert figure.met is False, name
