"""The soak: what it counts, and one short round with real runs."""

import os
import subprocess
import sys

import pytest

from validation.robustness import soak

KEPT = {"faults": 4, "lost": 0, "doubled": 0, "orphans": 0, "files": 0, "problems": []}


def figures_of(*lines):
    return soak.EXPERIMENT.figures(soak.EXPERIMENT.summary(list(lines), None))


@pytest.mark.parametrize(
    "broken", [{"lost": 1}, {"doubled": 1}, {"orphans": 1}, {"files": 2}, {"problems": ["exit 1"]}]
)
def test_whatever_is_broken_is_counted(broken):
    assert all(figure.met for figure in figures_of(KEPT, KEPT))
    assert [figure.met for figure in figures_of(KEPT, KEPT | broken)].count(False) == 1


def test_how_commands_ended_is_summed():
    lines = (KEPT | {"ends": {"ctrl_c: 130": 2}}, KEPT | {"ends": {"ctrl_c: 130": 1, "undisturbed: 0": 1}})
    assert figures_of(*lines)[-1].found == "ctrl_c: 130 × 3; undisturbed: 0 × 1"


def test_a_parent_that_grows_is_counted():
    kept, grown = (KEPT | {"growth": growth, "handles": handles, "turns": 6} for growth, handles in ((0, 0), (0.06, 1)))
    assert [figure.met for figure in figures_of(kept)][-2:] == [True, True]
    assert [figure.met for figure in figures_of(kept, grown)][-2:] == [False, False]


def test_the_clock_jumps_in_every_process(tmp_path):
    program = (
        "import time; from datetime import datetime as d; "
        "print(abs(time.time() - time.time()), abs(d.now() - d.now()).total_seconds())"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(soak._stepping_clock(tmp_path)), soak._ROOT])}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert [round(float(jump)) for jump in done.stdout.split()] == [7200, 7200]


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
