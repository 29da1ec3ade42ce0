"""Latency: the margin lies inside the test, the family keeps its error, and verdicts agree with their intervals."""

import math

import numpy as np
import pytest

from precision_eval.core.errors import ParameterError
from precision_eval.stats.families import GATE_ERROR, PairedTest, decide_all, paired_tests, scatter
from precision_eval.stats.moderated import upper_tail


def made_cells(rng, *, cells=100, processes=5, change=0.0, spread=0.003):
    logs = rng.normal(0.0, spread, (2, processes, cells))
    logs[1] += change
    return {cell: (np.exp(logs[0, :, cell]), np.exp(logs[1, :, cell])) for cell in range(cells)}


def verdicts(cells, margin):
    return [one.verdict for one in decide_all(paired_tests(cells, margin=margin)[0]).values()]


def test_the_same_processes_on_both_sides_are_no_change():
    cells = {key: (base, base) for key, (base, _) in made_cells(np.random.default_rng(0), cells=6).items()}
    tests, _ = paired_tests(cells, margin=0.01)
    assert {one.estimate for one in tests.values()} == {0.0}
    assert set(verdicts(cells, 0.01)) == {"no worse"}


def test_a_sure_change_inside_the_margin_is_no_regression():
    """A gate that tests against no change, and looks at the margin afterwards or never, fails here."""
    cells = made_cells(np.random.default_rng(3), cells=10, change=0.008, spread=0.0002)
    assert set(verdicts(cells, 0.0)) == {"regression"}
    assert set(verdicts(cells, 0.01)) == {"no worse"}


def test_an_estimate_beyond_the_margin_is_not_enough():
    """True changes of the margin itself: half of the estimates lie beyond it, and hardly a gate may fire."""
    rng = np.random.default_rng(4)
    fired = beyond = 0
    for _ in range(60):
        tests, _ = paired_tests(made_cells(rng, cells=30, change=math.log1p(0.01)), margin=0.01)
        beyond += any(one.estimate > one.margin for one in tests.values())
        fired += any(one.verdict == "regression" for one in decide_all(tests).values())
    assert beyond == 60
    assert fired <= 3  # at a rate of 1 %, four or more of 60 have a probability of 0.3 %


def test_the_family_and_not_the_cell_keeps_the_error():
    """A gate that tests every cell at 1 % fires on most A/A pairs of 100 cells; this one does on about 1 in 100."""
    rng = np.random.default_rng(5)
    fired = naive = 0
    for _ in range(60):
        tests, _ = paired_tests(made_cells(rng), margin=0.0)
        fired += any(one.verdict == "regression" for one in decide_all(tests).values())
        naive += any(upper_tail(t.estimate, t.standard_error, t.degrees) < GATE_ERROR for t in tests.values())
    assert naive > 20
    assert fired <= 3


def test_one_changed_cell_among_many_is_found_and_named():
    cells = made_cells(np.random.default_rng(6))
    cells[17] = (cells[17][0], cells[17][1] * 1.03)
    assert [cell for cell, one in enumerate(verdicts(cells, 0.01)) if one == "regression"] == [17]


def test_a_verdict_is_what_its_interval_says():
    cells = made_cells(np.random.default_rng(7), cells=60, spread=0.004)
    cells = {key: (base, head * math.exp(0.0015 * (key - 30))) for key, (base, head) in cells.items()}
    tests, _ = paired_tests(cells, margin=0.01)
    decided = decide_all(tests)
    for key, one in decided.items():
        assert (one.verdict == "regression") == (one.low > tests[key].margin)
        assert (one.verdict == "improvement") == (one.high < -tests[key].margin)
        assert one.low < tests[key].estimate < one.high
    assert {one.verdict for one in decided.values()} >= {"regression", "improvement", "undecided"}


def test_the_detectable_change_is_found_in_about_80_percent():
    rng = np.random.default_rng(8)
    quiet = made_cells(rng, cells=1, processes=40)
    one = decide_all(paired_tests(quiet, margin=0.01)[0])[0]
    found = sum(
        verdicts(made_cells(rng, cells=1, processes=40, change=one.detectable), 0.01) == ["regression"]
        for _ in range(200)
    )
    assert 130 < found < 190  # the quiet draw's own error moves it; a formula without the power gives 100


def test_cells_of_one_metric_share_their_variances():
    rng = np.random.default_rng(9)
    cells = made_cells(rng, cells=40, processes=3)
    alone, _ = paired_tests({0: cells[0]}, margin=0.01)
    together, prior = paired_tests(cells, margin=0.01)
    assert alone[0].degrees == 4
    assert together[0].degrees > 10
    assert math.sqrt(prior.variance) == pytest.approx(0.003, rel=0.2)


def test_scatter_is_one_for_processes_alone_and_grows_with_the_machines_state():
    rng = np.random.default_rng(10)
    calm, _ = paired_tests(made_cells(rng, cells=400), margin=0.01)
    moved = {key: (b, h * math.exp(rng.normal(0.05, 0.02))) for key, (b, h) in made_cells(rng, cells=400).items()}
    shifted = {key: (b, h * 1.05) for key, (b, h) in made_cells(rng, cells=400).items()}
    assert scatter(list(calm.values())) == pytest.approx(1.0, abs=0.15)
    assert scatter(list(paired_tests(shifted, margin=0.01)[0].values())) == pytest.approx(1.0, abs=0.15)
    assert scatter(list(paired_tests(moved, margin=0.01)[0].values())) > 5.0
    assert scatter([PairedTest(estimate=0.1, standard_error=0.0, degrees=3.0, margin=0.0)]) == 1.0


@pytest.mark.parametrize(("ratios", "match"), [((1.0,), "1 processes"), ((1.0, 0.0), "ratio of 0.0")])
def test_bad_ratios_are_refused_by_the_cells_name(ratios, match):
    with pytest.raises(ParameterError, match=f"cell-7 .*{match}"):
        paired_tests({"cell-7": (ratios, (1.0, 1.1))}, margin=0.01)
