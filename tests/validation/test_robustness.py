"""The experiment on injected faults: counting, and what is met where. The matrix is played in test_faults_injected."""

import threading
from dataclasses import replace

import pytest

from validation.frame import Trial
from validation.robustness import EXPERIMENT, harness
from validation.robustness.injector import MAIN_STAGES, WORKER_STAGES
from validation.robustness.scenarios import ENDS, scenarios

KEPT = {
    "key": "kill_worker/drift", "kind": "kill_worker", "stage": "drift", "scenario": "attention", "acted": True,
    "seen": "crashed", "lost": 0, "remeasured": 0, "ended": True, "problems": [],
}  # fmt: skip


@pytest.mark.parametrize(
    "broken", [{"acted": False}, {"lost": 1}, {"remeasured": 1}, {"ended": False}, {"problems": ("left over",)}]
)
def test_one_broken_promise_is_a_fault_not_withstood(broken):
    lines = [KEPT]
    assert [figure.met for figure in EXPERIMENT.figures(lines)] == [True, None]
    lines.append(KEPT | {"key": "kill_worker/audio", "stage": "audio"} | broken)
    figure, by_stage = EXPERIMENT.figures(lines)
    assert figure.found.startswith("1 of 2 faults: no finished cell lost")
    assert figure.met is False
    assert by_stage.found == "drift: crashed; audio: crashed (broken)"


def test_full_size_ends_the_run_in_every_way_at_every_stage():
    keys = {key for scenario in scenarios("full") for key in scenario.keys}
    for stage in (*WORKER_STAGES, *MAIN_STAGES):
        assert {f"{kind}/{stage}" for kind in ENDS} <= keys
    assert {key for scenario in scenarios("quick") for key in scenario.keys} <= keys
    for size in ("quick", "full"):
        first, second = scenarios(size)
        assert not set(first.keys) & set(second.keys)


def test_a_stop_ends_what_is_being_played(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "_ROOT", str(tmp_path))
    (tmp_path / "precision_eval").mkdir()
    (tmp_path / "precision_eval" / "cli.py").write_text("import time; print('begun', flush=True); time.sleep(60)")
    stopped = threading.Event()
    threading.Timer(1.0, stopped.set).start()
    with pytest.raises(KeyboardInterrupt):
        harness.play(scenarios("quick")[0], tmp_path / "play", stopped=stopped)


def test_what_is_played_is_stopped_with_the_experiment(monkeypatch):
    def played(scenario, folder, *, stopped):
        if scenario.name == "broken":
            raise KeyboardInterrupt
        assert stopped.wait(30)

    monkeypatch.setattr(harness, "play", played)
    trials = [Trial(name, replace(scenarios("quick")[0], name=name)) for name in ("long", "broken")]
    with pytest.raises(KeyboardInterrupt):
        list(EXPERIMENT.run(iter(reversed(trials)), None))
