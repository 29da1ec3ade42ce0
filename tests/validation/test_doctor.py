"""The plants and their truth: every mark exists, halves are fixed by the name, and a wrong truth counts as missed."""

from dataclasses import replace

import pytest
import torch

from precision_eval.stats import wilson_interval
from validation.doctor import half_of, small
from validation.doctor.blind import blind_plants
from validation.doctor.fourth import fourth_plants
from validation.doctor.plants import line_of, plants
from validation.doctor.second import second_plants
from validation.doctor.sweep import sweep_figures, sweep_summary
from validation.doctor.third import _IDIOMS, Idiom, idiom, third_plants
from validation.doctor.trials import alarms, locate


@pytest.mark.slow
def test_locating_one_plant_and_missing_a_wrong_truth():
    plant = next(plant for plant in plants() if plant.name == "decoder in float16: positions float32")
    beside = replace(plant, line=plant.line + 1)
    right, wrong = locate(plant), locate(beside)
    assert locate(replace(beside, others=((plant.file, plant.line, plant.module),)))["is_located"]
    assert (right["is_located"], wrong["is_located"], wrong["is_in_module"]) == (True, False, True)
    with pytest.raises(ValueError, match="not enough values"):
        line_of(small, "# @nowhere$")


@pytest.mark.slow
def test_of_lines_told_together_the_first_is_one_that_adds_much():
    assert locate(next(plant for plant in fourth_plants() if plant.name.startswith("HalfParallel")))["is_located"]


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


def test_a_round_of_the_sweep_counts_silent_plants_cures_and_alarms_and_lists_what_failed():
    plant = {"round": "first", "name": "a", "truth": "x.py:1 in m", "told": "", "is_located": True, "status": "passed"}
    cures = [
        {"fix": "float16", "is_true": True, "drift": 0.1},
        {"fix": "bfloat16", "is_true": False, "drift": None, "why": "not finite"},
    ]
    lines = [
        {"blind": {**plant, "has_verified_change": True, "cures": cures}},
        {"blind": {**plant, "name": "b", "is_located": False, "has_verified_change": True, "cures": []}},
        {"blind": {"round": "first", "name": "c", "refused": "it does not repeat"}},
        {"sweep-clean": {"round": "first", "name": "d", "faults": ["promotion at x.py:1"]}},
    ]
    rounds = sweep_summary(lines)
    counts = {name: value for name, value in rounds["first"].items() if isinstance(value, int)}
    assert counts == {
        "located": 1, "total": 3, "silent": 2, "silent_located": 1, "verified": 1, "cures": 2, "true_cures": 1,
        "clean_models": 1, "alarms": 1,
    }  # fmt: skip
    listed = {figure.name: figure.found for figure in sweep_figures(rounds) if figure.met is None}
    assert listed == {
        "no cure, first: a": "bfloat16: not finite",
        "missed, first: b": "at x.py:1 in m, told nothing (passed)",
        "refused, first: c": "it does not repeat",
        "false alarm, first: d": "promotion at x.py:1",
    }


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.slow
def test_the_truth_of_every_blind_plant_names_a_module_and_an_edit_that_can_be_made():
    for plant in (*blind_plants(), *second_plants(), *third_plants()):
        model, _ = plant.make()
        assert model.get_submodule(plant.module) is not None, plant.name


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize(("model", "dtype", "runs_on"), [(row[0], row[1], row[4]) for row in _IDIOMS])
def test_a_careless_idiom_is_silent_or_raises_as_declared_and_silently_wrong_where_the_careful_one_is_not(
    model, dtype, runs_on
):
    careful = model.__mro__[model.__mro__.index(Idiom) - 1]

    def output(of, dtype):
        built, (inputs,) = idiom(of)(dtype)
        with torch.no_grad():
            return built(**inputs)

    if not runs_on:
        with pytest.raises(RuntimeError):
            output(model, dtype)
        return
    truth, wrong, right = output(careful, torch.float64), output(model, dtype), output(careful, dtype)
    error = {name: float((y.double() - truth).norm() / truth.norm()) for name, y in (("w", wrong), ("r", right))}
    assert wrong.dtype != dtype or not error["w"] <= 2 * error["r"]
