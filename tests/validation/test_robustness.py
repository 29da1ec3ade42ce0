"""The experiment on injected faults: counting, drawing, resuming. The matrix is played in test_faults_injected."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from precision_eval.core.json_lines import TrialFile
from validation import robustness
from validation.robustness import harness
from validation.robustness.harness import Trial
from validation.robustness.injector import MAIN_STAGES, WORKER_STAGES, Fault
from validation.robustness.scenarios import ENDS, scenarios

KEPT = Trial(
    key="kill_worker/drift",
    kind="kill_worker",
    stage="drift",
    scenario="attention",
    acted=True,
    seen="crashed",
    lost=0,
    remeasured=0,
    ended=True,
    problems=(),
)


@pytest.mark.parametrize(
    "broken", [{"acted": False}, {"lost": 1}, {"remeasured": 1}, {"ended": False}, {"problems": ("left over",)}]
)
def test_one_broken_promise_is_a_fault_not_withstood(tmp_path, broken):
    file = TrialFile(tmp_path / robustness.TRIALS_NAME)
    file.append(KEPT.to_dict())
    assert [figure.met for figure in robustness.figures(tmp_path)] == [True]
    file.append(replace(KEPT, key="kill_worker/audio", stage="audio", **broken).to_dict())
    (figure,) = robustness.figures(tmp_path)
    assert figure.found.startswith("1 of 2 faults: no finished cell lost")
    assert figure.met is False
    png, svg = robustness.plot(tmp_path)
    assert png.stat().st_size > 0
    assert svg.suffix == ".svg"


def test_nothing_is_played_or_shown_twice(tmp_path, monkeypatch):
    assert robustness.figures(tmp_path) == []
    assert robustness.plot(tmp_path) == []
    monkeypatch.setattr(
        harness, "play", lambda scenario, folder: [replace(KEPT, key=key) for key in dict.fromkeys(scenario.keys)]
    )
    told = []
    robustness.run(tmp_path, size="quick", progress=lambda done, total, what: told.append((done, total)))
    total = len({key for scenario in scenarios("quick") for key in scenario.keys})
    assert told[-1] == (total, total)
    monkeypatch.setattr(harness, "play", None)
    robustness.run(tmp_path, size="quick", progress=lambda done, total, what: told.append((done, total)))
    assert told[-1] == (total, total)
    lines = (tmp_path / robustness.TRIALS_NAME).read_text().splitlines()
    assert len({json.loads(line)["key"] for line in lines}) == len(lines) == total


def test_full_size_ends_the_run_in_every_way_at_every_stage():
    keys = {key for scenario in scenarios("full") for key in scenario.keys}
    for stage in (*WORKER_STAGES, *MAIN_STAGES):
        assert {f"{kind}/{stage}" for kind in ENDS if kind != "full_disk"} <= keys
        assert f"full_disk/{stage}" in keys
    assert {key for scenario in scenarios("quick") for key in scenario.keys} <= keys


def test_keys_are_of_one_scenario_only():
    for size in ("quick", "full"):
        first, second = scenarios(size)
        assert not set(first.keys) & set(second.keys)
    assert Fault(kind="kill_worker", stage="audio").key == "kill_worker/audio"
