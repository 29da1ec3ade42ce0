"""The soak: what it counts, and one short round with real runs."""

import subprocess
import sys

import pytest

from validation.robustness import soak

KEPT = {"faults": 4, "lost": 0, "orphans": 0, "files": 0, "problems": []}


@pytest.mark.parametrize("broken", [{"lost": 1}, {"orphans": 1}, {"files": 2}, {"problems": ["exit 1"]}])
def test_whatever_is_broken_is_counted(broken):
    assert all(figure.met for figure in soak.EXPERIMENT.figures([KEPT, KEPT]))
    assert [figure.met for figure in soak.EXPERIMENT.figures([KEPT, KEPT | broken])].count(False) == 1


def test_how_commands_ended_is_summed():
    lines = [KEPT | {"ends": {"ctrl_c: 130": 2}}, KEPT | {"ends": {"ctrl_c: 130": 1, "undisturbed: 0": 1}}]
    assert soak.EXPERIMENT.figures(lines)[-1].found == "ctrl_c: 130 × 3; undisturbed: 0 × 1"


def test_a_parent_that_grows_is_counted():
    line = KEPT | {"growth": 0.06, "handles": 1, "threads": 0, "turns": 6}
    assert [figure.met for figure in soak.EXPERIMENT.figures([line])][-2:] == [False, False]


def test_a_process_that_outlives_its_command_is_named_and_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(soak, "ORPHAN_LIMIT_S", 0.1)
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], env={soak._MARK: str(tmp_path)}, start_new_session=True
    )
    assert [name for name in soak._living(tmp_path) if "time.sleep(60)" in name]
    assert process.wait(10) == -9
    assert soak._living(tmp_path) == []


@pytest.mark.slow
def test_a_killed_parent_loses_nothing():
    done = soak.play("attention", 0, ("kill_parent",), faults=1)
    assert done == KEPT | {"faults": 1, "ends": {"kill_parent: -9": 1, "undisturbed: 0": 1}}
