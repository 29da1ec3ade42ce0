"""The fifth set by torch alone: a careless twin raises at a line of its truth or drifts, and a careful one is clean."""

import traceback
from pathlib import Path

import pytest
import torch

from validation.doctor.fifth import ROWS, fifth_clean, fifth_plants, truths, twin
from validation.doctor.plants import BRAIN, HALF, SINGLE

TIMES, CLEAN = 5.0, {HALF: 0.005, BRAIN: 0.03, SINGLE: 2e-4}
"""What a fault costs at least, of what its format costs, and the most that a careful twin drifts."""
#: Raises beyond every line of its truth: what was widened there is refused later on.
RAISED_BEYOND = ("prefix",)

pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support"),
    pytest.mark.filterwarnings("ignore:There are modules"),
]


def output(row, dtype, *, careful):
    model, (inputs,) = twin(row, dtype, careful=careful)
    with torch.no_grad():
        return model(**inputs)


def drift(row, dtype, *, careful):
    truth, found = output(row, torch.float64, careful=True), output(row, dtype, careful=careful)
    assert found.dtype == dtype
    assert truth.isfinite().all()
    return float((found.double() - truth).norm() / truth.norm())


def test_the_set_has_forty_silent_plants_and_twenty_that_raise_and_every_truth_has_a_line():
    assert sorted(row.raises for row in ROWS.values()) == [False] * 40 + [True] * 20
    assert all(truths(row) for row in ROWS.values())
    assert [plant.name.split(" ")[0] for plant in fifth_plants()] == [name for name, _ in fifth_clean()] == list(ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("dtype", CLEAN)
def test_a_careful_twin_drifts_by_what_its_format_costs(name, dtype):
    assert drift(ROWS[name], dtype, careful=True) <= CLEAN[dtype]


@pytest.mark.slow
@pytest.mark.parametrize("name", [row.name for row in ROWS.values() if not row.raises])
def test_a_silent_plant_costs_many_times_what_its_format_does(name):
    row = ROWS[name]
    wrong, right = (drift(row, row.dtype, careful=careful) for careful in (False, True))
    assert not wrong <= TIMES * right  # not finite counts


@pytest.mark.slow
@pytest.mark.parametrize("name", [row.name for row in ROWS.values() if row.raises])
def test_a_raising_plant_raises(name):
    row = ROWS[name]
    with pytest.raises((RuntimeError, IndexError)) as raised:
        output(row, row.dtype, careful=False)
    frames = {(Path(frame.filename).name, frame.lineno) for frame in traceback.extract_tb(raised.tb)}
    lines = {(file, line) for file, line, _ in truths(row)}
    assert frames & lines or name in RAISED_BEYOND, frames
