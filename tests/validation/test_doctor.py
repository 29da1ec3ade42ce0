"""The plants and their truth: every mark exists, halves are fixed by the name, and a wrong truth counts as missed."""

from dataclasses import replace

import pytest
import torch

from precision_eval.stats import wilson_interval
from validation.doctor import half_of, small
from validation.doctor.plants import line_of, plants
from validation.doctor.trials import alarms, locate


@pytest.mark.slow
def test_locating_one_plant_and_missing_a_wrong_truth():
    plant = next(plant for plant in plants() if plant.name == "decoder in float16: positions float32")
    right, wrong = locate(plant), locate(replace(plant, line=plant.line + 1))
    assert (right["is_located"], wrong["is_located"], wrong["is_in_module"]) == (True, False, True)
    with pytest.raises(ValueError, match="not enough values"):
        line_of(small, "# @nowhere$")


@pytest.mark.slow
def test_a_planted_fault_among_the_clean_is_an_alarm():
    assert alarms("clean", lambda: small.decoder(torch.float16))["faults"] == []
    assert alarms("planted", next(plants()).make)["faults"] != []


def test_a_half_is_counted_with_wilsons_interval():
    part = [
        {
            "is_located": number > 0,
            "where_raised": number > 1,
            "is_fault": True,
            "has_verified_change": number > 2,
            "changes_source": number > 5,
        }
        for number in range(20)
    ]
    half = half_of(part)
    assert (half["located"], half["total"], half["share"], half["is_met"]) == (19, 20, 0.95, True)
    assert (half["low"], half["high"]) == pytest.approx((0.7639, 0.9911), abs=1e-4)
    assert (half["low"], half["high"]) == wilson_interval(0.95, 20)
    assert (half["beyond_traceback"], half["located_beyond_traceback"]) == (2, 1)
