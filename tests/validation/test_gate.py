"""The gate's trials: sets become asv's files and come back, rules find what was planted, rates are counted right."""

import math

import numpy as np
import pytest
import torch

from precision_eval.measure.memory import cpu_allocated_peak_bytes
from precision_eval.stats import wilson_interval
from precision_eval.stats.families import decide_all
from validation import gate
from validation.gate import EXPERIMENT, figures, measuring, rules

SETS, PROCESSES = 4, 6
CELLS = measuring.CELLS


def made_line(seed, *, spread=0.001):
    """A set as it is measured, from drawn numbers; slowed calls are slower by exactly their delta."""
    rng = np.random.default_rng(seed)
    factors = {name: count / measuring.UNITS for name, count in measuring.TIMED.items()}
    timed = [(f"{case}|{fix}|{name}", factor) for case, fix in CELLS for name, factor in factors.items()]

    def drawn(middle):
        return middle * math.exp(rng.normal(0, spread))

    def process():
        ratios = {f"{case}|{measuring.BASELINE}|plain": {"to_anchor": drawn(0.5)} for case in measuring.GROUPS}
        for name, factor in timed:
            ratio = drawn(1.5 * factor)
            ratios[name] = {"to_baseline": ratio, "to_anchor": ratio / 2}
        return ratios

    exact = {"drift": 1e-6, "drift_worse": 1.5e-6, "peak_bytes": 1000, "peak_bytes_worse": 1050, "stored_bytes": 99}
    return {
        "processes": [process() for _ in range(PROCESSES)],
        "asv": [{name: [drawn(0.001 * factor) for _ in range(5)] for name, factor in timed} for _ in range(2)],
        "exact": [{f"{case}|{fix}": exact for case, fix in CELLS}],
    }


@pytest.fixture(scope="module")
def lines():
    return [made_line(seed) for seed in range(SETS)]


@pytest.fixture(scope="module")
def sets(lines, tmp_path_factory):
    return rules.read_sets(lines, tmp_path_factory.mktemp("results"))


CELL = ("attention-decode", "query_to_half")


def test_asvs_files_hold_what_was_measured(sets, lines):
    side = sets.sides[2, "slower_5"]
    key = next(k for k in side.figures if (k[0].case, k[0].fix, k[1]) == (*CELL, "latency_ratio"))
    wanted = [one["|".join((*CELL, "slower_5"))]["to_baseline"] for one in lines[2]["processes"]]
    assert list(side.figures[key].samples) == pytest.approx(wanted)
    assert side.figures[key].value == pytest.approx(np.median(wanted))
    status = next(one for k, one in side.figures.items() if (k[0].fix, k[1]) == (CELL[1], "status"))
    assert status.status == "passed"


def test_the_gate_is_silent_on_like_sets_and_names_the_slowed_cell(sets):
    assert rules.gate_says(sets, 0, 1, None, processes=PROCESSES) == set()
    for variant in ("slower_2", "slower_5", "drift", "memory"):
        assert rules.gate_says(sets, 0, 1, (CELL, variant), processes=PROCESSES) == {CELL}


@pytest.mark.parametrize(
    ("name", "variant", "least", "most"),
    [
        ("asv continuous, its times", "slower_5", 1.02, 1.05),
        ("asv compare, drift", "drift", 1.1, 2.0),
        ("asv compare, peak bytes", "memory", 1.01, 1.1),
    ],
)
def test_asv_is_asked_in_its_own_words(sets, name, variant, least, most):
    rule = next(rule for rule in rules.ASV_RULES if rule.name == name)
    assert rules.asv_says(sets, 0, 1, None, rule=rule, factor=1.1) == set()
    assert rules.asv_says(sets, 0, 1, (CELL, variant), rule=rule, factor=least) == {CELL}
    assert rules.asv_says(sets, 0, 1, (CELL, variant), rule=rule, factor=most) == set()


def test_rates_are_counted_and_their_intervals_not_too_narrow():
    def says(base, head, fault):
        if fault is None:
            return {CELL} if (base, head) == (0, 1) else set()
        return {fault[0]} if base == 0 else {CELL}  # an alarm elsewhere does not find a fault

    pairs = [(0, 1), (1, 0), (2, 3), (0, 3)]
    gates, one_cell, recall = figures.rates("rule", says, ["slower_2"], pairs, 4, judged=True)
    assert (gates["count"], gates["trials"], gates["met"]) == (1, 4, False)
    assert (gates["low"], gates["high"]) == pytest.approx(wilson_interval(0.25, 2), abs=1e-5)
    assert (one_cell["count"], one_cell["trials"]) == (1, 4 * len(CELLS))
    assert recall["count"] == 2 * len(CELLS) + 2
    assert recall["by_cell"]["/".join(CELL)] == 1.0


def test_pairs_are_of_unlike_sets_and_drawn_once():
    pairs = figures.drawn_pairs(5, 12)
    assert len(set(pairs)) == 12
    assert all(base != head for base, head in pairs)
    assert len(figures.drawn_pairs(3, 100)) == 6


def test_spreads_find_a_state_that_sets_do_not_share(lines):
    calm = figures.spreads(lines)["/".join(CELL) + " to_baseline"]
    assert calm["process_sd"] == pytest.approx(0.001, rel=0.6)
    assert calm["slower_2"] == pytest.approx(1.02, abs=0.002)
    moved = [made_line(seed) for seed in range(SETS)]
    for number, line in enumerate(moved):
        for one in line["processes"]:
            one["|".join((*CELL, "plain"))]["to_baseline"] *= 1.0 + 0.02 * number
    assert figures.spreads(moved)["/".join(CELL) + " to_baseline"]["sets_over_processes"] > 50


def test_the_simulated_error_is_counted_and_not_assumed(monkeypatch):
    monkeypatch.setattr(figures, "SIMULATED_CELLS", 20)
    found = figures.simulated(gates=40)
    assert [one["what"].split(", ")[1] for one in found] == ["3 processes a side"] * 2 + ["5 processes a side"] * 2
    for one in found:
        assert one["trials"] == 40
        assert one["rate"] <= 0.1
        assert one["met"] is (one["rate"] <= 0.01)
    monkeypatch.setattr(figures, "decide_all", without_multiplicity)
    assert figures.simulated(gates=40)[2]["rate"] > 0.1


def without_multiplicity(tests):
    return {key: decide_all({key: one})[key] for key, one in tests.items()}


def test_injected_calls_do_what_they_say():
    exact = torch.full((4,), 2.0, dtype=torch.float64)
    worse = measuring.drifting(lambda x: x, exact, 1.5)(torch.full((4,), 3.0))
    assert worse.tolist() == [3.5] * 4

    def grown(x):
        return x + 1

    inputs = (torch.zeros(1000),)
    plain = cpu_allocated_peak_bytes(grown, inputs)
    assert cpu_allocated_peak_bytes(measuring.holding(grown, 500), inputs) == plain + 500
    assert measuring.TIMED == {"plain": 100, "slower_2": 102, "slower_5": 105}


def options(tmp_path, **more):
    return EXPERIMENT.options({"sets": "3", "processes": "2", "jobs": "2", "simulated": "1", **more}, out=tmp_path)


@pytest.mark.parametrize("other", ["cpu", "torch"])
def test_no_pair_spans_two_machines_or_versions_of_torch(tmp_path, lines, other):
    here = {"processes": PROCESSES, "budget_s": 0.1, "design": 1, "cpu": "Testium", "torch": "2.13.0"}
    there = here | {other: "other"}
    first = [{"key": f"a{n}", "conditions": there, **line} for n, line in enumerate(lines)]
    last = [{"key": f"b{n}", "conditions": here, **line} for n, line in enumerate(lines[:2])]
    assert EXPERIMENT.summary(first + last[:1], options(tmp_path)) is None
    content = EXPERIMENT.summary(first + last, options(tmp_path))
    assert content["conditions"] == here | {"sets": 2, "pairs": 2}
    judged = [rate for rate in content["figures"] if rate["rule"] == f"gate, {PROCESSES} processes a side"]
    assert len(EXPERIMENT.figures(content)) == len(judged) + len(content["simulated"])


@pytest.mark.slow
def test_a_set_is_measured_for_real(tmp_path):
    (found,) = gate.measured_sets([0], options(tmp_path, processes="1", budget_s="0.02"))
    assert len(found["processes"]) == 1
    assert len(found["asv"]) == measuring.ROUNDS_OF_ASV
    for case, fix in CELLS:
        for variant in measuring.TIMED:
            assert set(found["processes"][0][f"{case}|{fix}|{variant}"]) == {"to_baseline", "to_anchor"}
            assert found["asv"][0][f"{case}|{fix}|{variant}"]
        exact = found["exact"][0][f"{case}|{fix}"]
        assert exact["drift_worse"] / exact["drift"] > 1.4
        assert 1.05 <= exact["peak_bytes_worse"] / exact["peak_bytes"] < 1.06
