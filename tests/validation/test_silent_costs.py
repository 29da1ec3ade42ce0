"""The silent costs: every mark exists, both writings run, and what was found is counted as the text says."""

import pytest
import torch

from validation.doctor.costly import _PARTS, Part, chained, cost_plants
from validation.doctor.silent_costs import counted, counts, is_right


def line(low, high, *, found=None, saved_bytes=0, held_out=False):
    truth = {"ratio": (low + high) / 2, "low": low, "high": high, "saved_bytes": saved_bytes, "stored_bytes": 1000}
    return {"name": "p", "kind": "wide_product", "held_out": held_out, "truth": truth, "found": found}


def shown(low, high, saved_bytes=0):
    return {"ratio": None if low is None else (low + high) / 2, "low": low, "high": high, "saved_bytes": saved_bytes}


def test_what_counts_as_a_cost_and_as_a_right_saving():
    assert counts(line(0.90, 0.95))
    assert not counts(line(0.95, 0.99))
    assert counts(line(0.95, 1.05, saved_bytes=21))
    assert not counts(line(1.01, 1.05, saved_bytes=500))  # fewer bytes for more time is a choice
    assert is_right(line(0.90, 0.95, found=shown(0.94, 0.97)))
    assert not is_right(line(0.90, 0.95, found=shown(0.96, 0.97)))
    assert is_right(line(0.90, 0.95, saved_bytes=100, found=shown(None, None, 104)))
    assert not is_right(line(0.90, 0.95, saved_bytes=100, found=shown(None, None, 110)))


def test_a_half_is_counted():
    lines = [
        line(0.8, 0.9, found=shown(0.85, 0.95)),
        line(0.8, 0.9, found=shown(0.5, 0.6)),
        line(0.8, 0.9),
        line(0.99, 1.01),
        line(0.99, 1.01, found=shown(0.9, 0.95)),
    ]
    half = counted(lines)
    assert (half["planted"], half["costly"], half["found"], half["right"]) == (5, 3, 2, 1)
    assert (half["timed"], half["faster"], half["shown_for_nothing"]) == (2, 2, ["p"])


def test_every_plant_has_its_lines_and_a_third_is_held_out():
    plants = list(cost_plants())
    assert len({plant.name for plant in plants}) == len(plants) >= 40
    assert all(plant.lines for plant in plants if plant.marker)
    assert 3 * sum(plant.is_held_out for plant in plants) >= len(plants)


@pytest.mark.parametrize("part", [row[0] for row in _PARTS], ids=lambda part: part.__name__)
def test_the_careless_and_the_careful_writing_compute_the_same(part: type[Part]):
    dtype = next(row[3][0] for row in _PARTS if row[0] is part)
    outputs = []
    for cured in (False, True):
        model, inputs = chained(part, dtype, cured=cured)
        with torch.no_grad():
            outputs.append(model(*inputs))
    careless, careful = outputs
    assert careless.dtype is careful.dtype
    assert float((careless - careful).norm() / careless.norm()) < 0.02
