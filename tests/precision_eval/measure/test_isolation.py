"""Isolation of a timed cell: what is said of counters and of other processes, and what error does."""

import os

import psutil
import pytest

from precision_eval.core.cells import Cell, Options, passed
from precision_eval.core.errors import ParameterError
from precision_eval.measure import isolation
from precision_eval.measure.isolation import CpuUse, IsolationError, cpu_doubts, cpu_use, gpu_doubts, watch_device
from precision_eval.measure.registry import Measure, run_cell


@pytest.mark.parametrize(
    ("after", "doubts"),
    [
        (CpuUse(10.0, 112.0, 60.0), ["shared cores: others took 10 % of the time of 2 cores"]),
        (CpuUse(10.0, 111.0, 60.0), []),
        (CpuUse(0.5, 200.0, 50.0), []),  # too short to tell
    ],
)
def test_what_others_took_of_the_cores_by_hand(after, doubts):
    assert cpu_doubts(CpuUse(0.0, 100.0, 50.0), after, 2) == doubts


def test_counters_leave_out_idle_and_count_guests_once(monkeypatch):
    times = type(psutil.cpu_times())
    monkeypatch.setattr(psutil, "cpu_times", lambda: times(**dict.fromkeys(times._fields, 2.0)))
    busy = [name for name in times._fields if name not in ("idle", "iowait", "guest", "guest_nice")]
    assert cpu_use().busy_s == 2.0 * len(busy)


def test_other_processes_on_a_gpu():
    own = os.getpid()
    assert gpu_doubts("", own) == gpu_doubts(f"{own}, python", own) == []
    assert gpu_doubts(f"{own}, python\n7, train\n", own) == ["shared GPU: other processes compute on it: 7, train"]


@pytest.fixture
def others(monkeypatch):
    """A machine on which other processes took half of the cores."""
    looks = iter([CpuUse(0.0, 0.0, 0.0), CpuUse(1.0, 0.5, 0.0)])
    monkeypatch.setattr(isolation, "cpu_use", lambda: next(looks))
    monkeypatch.setattr(isolation.os, "cpu_count", lambda: 1)


def timed(cell, run_dir):
    return [passed(fix, {"ratio": 1.0, "doubts": ["known"]}) for fix in cell.fixes]


def measure_of(name, *, timed):
    return Measure(name=name, title=name, source="", place=f"{__name__}:timed", timed=timed)


def cell_of(measure, level):
    return Cell(case="c", fixes=("f",), mode="eager", device="cpu", size="s", threads=1, measure=measure.name,
                options=Options(isolation=level))  # fmt: skip


DOUBT = "shared cores: others took 50 % of the time of 1 cores"


def test_a_timed_cell_keeps_the_doubt_and_an_untimed_one_has_none(others, tmp_path):
    (measure, quick) = (measure_of(name, timed=name == "a") for name in ("a", "b"))
    (outcome,) = run_cell(cell_of(quick, "error"), tmp_path, (measure, quick)).outcomes
    assert outcome.data["doubts"] == ["known"]
    (outcome,) = run_cell(cell_of(measure, "warn"), tmp_path, (measure, quick)).outcomes
    assert outcome.data["doubts"] == ["known", DOUBT]


def test_error_ends_the_run_instead(others, tmp_path):
    measure = measure_of("a", timed=True)
    with pytest.raises(IsolationError, match=r"took 50 %.*--set isolation=warn"):
        run_cell(cell_of(measure, "error"), tmp_path, (measure,))
    assert issubclass(IsolationError, ParameterError)


def test_a_cell_that_raises_says_why_and_not_that_it_was_disturbed(others):
    with pytest.raises(ZeroDivisionError), watch_device("cpu", "error"):
        _ = 1 / 0
