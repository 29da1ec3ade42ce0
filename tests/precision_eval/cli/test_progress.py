"""Progress: counts, time left, plain lines, and a table on a terminal that stands still while something is timed."""

import io
import time
from dataclasses import replace

import pytest
from made_groups import record
from rich.console import Console

from precision_eval.cli.progress import LiveProgress, PlainProgress, Tally, clock, progress_on
from precision_eval.run.plan import Selection, make_plan


@pytest.fixture
def plan():
    selection = Selection(
        cases=("attention-decode",), sizes=("tiny",), measures=("trace", "latency"), fixes=("k*", "bfloat16")
    )
    return make_plan(selection)


def record_of(cell, fix, status="passed"):
    place = {name: getattr(cell, name) for name in ("case", "mode", "device", "size")}
    reason = None if status == "passed" else "[why]"
    return record(fix, cell.measure, status=status, reason=reason, wall_s=1.0, **place)


def settle(progress, cell, status="passed"):
    progress.started(cell)
    progress.finished(cell, tuple(record_of(cell, fix, status) for fix in cell.fixes), resumed=False)


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (61, "1:01"), (3661, "1:01:01")])
def test_clock(seconds, text):
    assert clock(seconds) == text


def test_time_left_follows_the_pace(plan, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    tally = Tally(plan)
    assert (tally.total, tally.left()) == (4, "0:00 elapsed")
    trace, other, latency = plan.cells
    now[0] += 30.0
    tally.add(trace, 1, wall_s=30.0)  # ten times what a trace is expected to take
    assert tally.left() == "0:30 elapsed, about 1:00 left"  # (3 + 1.5 × 2 s) ten times over
    now[0] += 6.0
    tally.add(other, 1, wall_s=6.0)
    assert tally.left() == "0:36 elapsed, about 0:18 left"  # of latency nothing is known: the pace of all, 36 / 6
    tally.add(latency, 1, wall_s=0.0)  # took over a status: says nothing of the pace
    assert tally.left() == "0:36 elapsed, about 0:09 left"
    tally.add(latency, 1, wall_s=8.0)
    assert tally.left() == "done in 0:36"


def test_time_left_of_cells_that_run_side_by_side_and_of_one_that_does_not(plan, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    tally = Tally(plan)
    trace, _, latency = plan.cells
    now[0] += 10.0
    tally.add(latency, 1, wall_s=20.0)  # half of it: 10 s, against 1.5 expected
    assert tally.left() == "0:10 elapsed, about 0:50 left"  # 1.5 + 2 × 3 s at that pace, one after the other
    tally.add(trace, 1, wall_s=10.0)
    assert tally.left() == "0:10 elapsed, about 0:15 left"  # 10 s of latency alone, 10 s of a trace beside another


@pytest.mark.parametrize(("verbose", "lines"), [(False, 1), (True, 7)])
def test_a_pipe_gets_a_few_lines_or_one_for_each_record(plan, verbose, lines):
    file = io.StringIO()
    console = Console(file=file)
    with progress_on(console, plan, verbose=verbose) as progress:
        assert isinstance(progress, PlainProgress)
        for cell in plan.cells:
            settle(progress, cell, "raised")
    text = file.getvalue()
    assert len(text.splitlines()) == lines
    assert ("attention-decode/kv_to_query/eager@cpu:tiny#trace raised (1.0 s): [why]" in text) == verbose
    assert "[4/4] done in 0:00" in text


def test_a_terminal_gets_one_bar_that_stands_still_while_something_is_timed_and_goes_away(plan):
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80)
    with progress_on(console, plan) as progress:
        assert isinstance(progress, LiveProgress)
        settle(progress, plan.cells[0])
        settle(progress, plan.cells[1], "timed_out")
        progress.started(plan.cells[2])
        before = file.tell()
        time.sleep(1.2)
        assert file.tell() == before  # nothing is drawn while something is timed
        settle(progress, plan.cells[2])
    text = file.getvalue()
    assert "latency of 2 fixes on attention-decode" in text
    assert "4/4" in text
    assert text.splitlines()[-1].endswith("done in 0:01")


def test_a_running_untimed_cell_is_redrawn(plan):
    file = io.StringIO()
    with progress_on(Console(file=file, force_terminal=True, width=120), plan) as progress:
        progress.started(replace(plan.cells[0]))
        before = file.tell()
        time.sleep(1.2)
        assert file.tell() > before
