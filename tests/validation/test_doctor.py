"""The plants and their truth: every mark exists, halves are fixed by the name, and a wrong truth counts as missed."""

from dataclasses import replace

import pytest
import torch

from precision_eval.stats import wilson_interval
from validation.doctor import _half, small
from validation.doctor.location import alarms, locate
from validation.doctor.plants import marked_line, small_plants


def test_marks_point_to_their_lines():
    assert marked_line(small, "positions") > 1
    with pytest.raises(ValueError, match="not enough values"):
        marked_line(small, "nowhere")


@pytest.mark.slow
def test_locating_one_plant_and_missing_a_wrong_truth():
    plant = next(plant for plant in small_plants() if plant.name == "decoder in float16: positions float32")
    wrong = replace(plant, line=plant.line + 1)
    found = [locate(plant), locate(wrong)]
    assert [one.is_located for one in found] == [True, False]
    assert found[1].is_in_module


@pytest.mark.slow
def test_a_planted_fault_among_the_clean_is_an_alarm():
    assert alarms("clean", lambda: small.decoder(torch.float16))["faults"] == []
    assert alarms("planted", small_plants()[0].make)["faults"] != []


def test_a_half_is_counted_with_wilsons_interval():
    part = [{"is_located": number > 0, "where_raised": number > 1} for number in range(20)]
    half = _half(part)
    assert (half["located"], half["total"], half["share"], half["is_met"]) == (19, 20, 0.95, True)
    assert (half["low"], half["high"]) == pytest.approx((0.7639, 0.9911), abs=1e-4)
    assert (half["low"], half["high"]) == wilson_interval(0.95, 20)
    assert (half["beyond_traceback"], half["located_beyond_traceback"]) == (2, 1)
