"""Progress: counts, time left, plain lines, and a bar on a terminal."""

import io
import time

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


def records_of(cell, status="passed"):
    return tuple(record_of(cell, fix, status) for fix in cell.fixes)


def settle(progress, cell, status="passed"):
    progress.started(cell)
    progress.finished(cell, records_of(cell, status), resumed=False)


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (61, "1:01"), (3661, "1:01:01")])
def test_clock(seconds, text):
    assert clock(seconds) == text


def test_time_left_follows_the_pace(plan, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    tally = Tally(plan)
    assert (tally.total, tally.left_text()) == (4, "0:00 elapsed")
    trace, other, latency = plan.cells
    now[0] += 30.0
    tally.add(trace, records_of(trace), resumed=False)  # ten times the 3 s that a trace is expected to take
    assert tally.left_text() == "0:30 elapsed, about 1:00 left"  # (3 + 2 × 1.5 s) ten times over
    tally.add(other, records_of(other), resumed=True)
    assert tally.left_text() == "0:30 elapsed, about 0:30 left"
    now[0] += 6.0
    tally.add(latency, records_of(latency), resumed=False)
    assert (tally.left_text(), tally.resumed) == ("done in 0:36", 1)


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


def test_a_terminal_gets_one_bar_that_goes_away(plan):
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80)
    with progress_on(console, plan) as progress:
        assert isinstance(progress, LiveProgress)
        settle(progress, plan.cells[0])
        settle(progress, plan.cells[1], "timed_out")
        progress.started(plan.cells[2])
        settle(progress, plan.cells[2])
    text = file.getvalue()
    assert "latency of 2 fixes on attention-decode" in text
    assert "4/4" in text
    assert text.splitlines()[-1].endswith("done in 0:00")
