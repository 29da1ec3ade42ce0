"""The score of the doctor: a wrong truth counts as missed, a fault among the clean as an alarm, and counts add up."""

from dataclasses import replace

import pytest
import torch

from validation.doctor import count, round_figures, small
from validation.doctor.scenes import Plant
from validation.doctor.trials import alarms, located, score


def planted():
    model, inputs = small.decoder(torch.float16)
    model.positions.data = model.positions.data.float()
    return model, ({"ids": inputs[0]},)


PLANT = Plant("positions float32", planted, (("small.py", 66, ""),))


def test_a_plant_is_located_by_line_and_module_and_missed_where_the_truth_is_another():
    from precision_eval import examine

    diagnosis = examine(planted()[0], *planted()[1], fixes=False)
    file, line, module = "small.py", diagnosis.first_split.place.line, diagnosis.first_split.module
    right = replace(PLANT, truths=((file, line, module),))
    assert located(right, diagnosis)["is_located"]
    assert not located(replace(right, truths=((file, line + 1, module),)), diagnosis)["is_located"]
    assert not located(replace(right, truths=((file, line, "head"),)), diagnosis)["is_located"]


@pytest.mark.slow
def test_a_score_runs_the_cures():
    scored = score(PLANT)
    assert {cure["fix"] for cure in scored["cures"]} >= {"full_float32"}
    assert all(cure["is_true"] for cure in scored["cures"])


def test_a_planted_fault_among_the_clean_is_an_alarm_and_so_is_a_refusal():
    assert alarms("clean", lambda: small.decoder(torch.float16))["faults"] == []
    assert alarms("planted", planted)["faults"] != []
    assert alarms("broken", lambda: (torch.nn.Linear(2, 2), (torch.ones(3),)))["faults"][0].startswith("refused: ")


def test_a_round_counts_silent_plants_cures_and_alarms_and_lists_what_failed():
    plant = {"name": "a", "truth": "x.py:1 in m", "place": "", "is_located": True, "status": "passed"}
    cures = [{"fix": "float16", "is_true": True}, {"fix": "bfloat16", "is_true": False, "why": "not finite"}]
    counts = count(
        plants=[
            {**plant, "has_verified_change": True, "cures": cures},
            {**plant, "name": "b", "is_located": False, "has_verified_change": True, "cures": []},
            {"name": "c", "refused": "it does not repeat"},
        ],
        twins=[{"name": "d", "faults": ["promotion at x.py:1"]}],
    )
    assert {name: value for name, value in counts.items() if isinstance(value, int)} == {
        "located": 1, "total": 3, "silent": 2, "silent_located": 1, "verified": 1, "cures": 2, "true_cures": 1,
        "clean_models": 1,
    }  # fmt: skip
    listed = {figure.name: figure.found for figure in round_figures("first", counts) if figure.met is None}
    assert listed == {
        "no cure, first: a": "bfloat16: not finite",
        "missed, first: b": "at x.py:1 in m; the doctor: nothing",
        "missed, first: c": "it does not repeat",
        "false alarm: d": "promotion at x.py:1",
    }
