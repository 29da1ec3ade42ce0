"""Progress: counts, time left, plain lines, and a bar on a terminal."""

import io
import random
import time
from dataclasses import replace

import pytest
from made_groups import record
from rich.console import Console

from precision_eval.cli.progress import ConsoleListener, LiveProgress, PlainProgress, Tally, clock, progress_on
from precision_eval.run.plan import Selection, make_plan


@pytest.fixture
def plan():
    selection = Selection(
        cases=("attention-decode",), sizes=("tiny",), measures=("trace", "latency"), fixes=("k*", "bfloat16")
    )
    return make_plan(selection)


def record_of(cell, fix, status="passed", wall_s=1.0):
    place = {name: getattr(cell, name) for name in ("case", "mode", "device", "size")}
    reason = None if status == "passed" else "[why]"
    return record(fix, cell.measure, status=status, reason=reason, wall_s=wall_s, **place)


def records_of(cell, status="passed", wall_s=1.0):
    return tuple(record_of(cell, fix, status, wall_s) for fix in cell.fixes)


def settle(progress, cell, status="passed"):
    progress.started(cell)
    progress.finished(cell, records_of(cell, status), resumed=False)


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (61, "1:01"), (3661, "1:01:01")])
def test_clock(seconds, text):
    assert clock(seconds) == text


def test_time_left_follows_cells_alike_and_the_pace(plan, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    tally = Tally(plan)
    assert (tally.total, tally.left_text()) == (4, "0:00 elapsed")
    trace, other, latency = plan.cells
    tally.start(trace)
    tally.start(other)
    now[0] += 30.0
    tally.add(trace, records_of(trace, wall_s=30.0), resumed=False)
    timed_s = tally.measures["latency"].expected_s(latency)
    assert 1.0 <= timed_s <= 10.0  # has a budget, which a slow machine does not stretch
    assert tally.left_text() == f"0:30 elapsed, about {clock(timed_s)} left"  # the other trace is as good as done
    now[0] += 30.0
    assert tally.left_text() == f"1:00 elapsed, about {clock(timed_s)} left"
    tally.add(other, records_of(other), resumed=True)
    tally.start(latency)
    now[0] += 6.0
    tally.add(latency, records_of(latency, wall_s=6.0), resumed=False)
    assert (tally.left_text(), tally.resumed) == ("done in 1:06", 1)


FIXES = ("as_shipped", "kv_to_query", "full_float32", "bfloat16", "float16")
MEASURES = ("trace", "drift", "memory", "latency")


def foretell(plan, wall_of, monkeypatch):
    """Run a plan on two workers by planted walls, timed cells alone; return when it ends, and what was foretold when.

    Four of five fixes run; the fifth takes over the status of its trace.
    """
    now, ends, foretold = [0.0], [0.0, 0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    tally = Tally(plan)
    for number, cell in enumerate(plan.cells):
        timed = cell.measure == "latency"
        worker = ends.index(min(ends))
        if timed:
            ends = [max(ends)] * 2
        status = "raised" if cell.fixes == ("as_shipped",) else "passed"
        wall_s = wall_of(number, cell, tally.measures[cell.measure].expected_s(cell))
        if status == "raised" and cell.measure != "trace":
            wall_s = 0.0
        tally.start(cell)
        ends[worker] += wall_s
        ends = [max(ends)] * 2 if timed else ends
        now[0] = max(ends)
        tally.add(cell, records_of(cell, status, wall_s=wall_s), resumed=False)
        foretold.append((now[0], now[0] + (tally.left_s() if tally.settled < tally.total else 0.0)))
    return now[0], foretold


def holds(whole_s, foretold, since):
    return all(total_s == pytest.approx(whole_s, rel=1 / 3) for at_s, total_s in foretold if at_s >= since * whole_s)


def test_the_time_left_of_a_whole_run_holds_within_a_third(monkeypatch):
    """Each cell takes three times its rough duration, and timed ones their budget."""
    plan = make_plan(Selection(cases=("attention-decode", "attention-prefill"), measures=MEASURES, fixes=FIXES))
    wall_of = lambda number, cell, rough_s: 4.0 if cell.measure == "latency" else 3.0 * rough_s  # noqa: E731
    assert holds(*foretell(plan, wall_of, monkeypatch), since=1 / 4)


@pytest.mark.parametrize(("load", "first"), [(1.0, 1.0), (1.0, 3.0), (3.0, 3.0), (4.0, 1.0)])
def test_the_time_left_holds_from_a_third_on_whatever_the_load_and_the_first_cells(load, first, monkeypatch):
    """The first cell of each measure is slow, all scatter; a load stretches timed cells less, which have a budget."""
    cases = ("attention-decode", "attention-prefill", "metavoice-decode")
    plan = make_plan(Selection(cases=cases, measures=MEASURES, fixes=FIXES))
    held = []
    for seed in range(20):
        draws, seen = random.Random(seed), set()

        def wall_of(number, cell, rough_s, draws=draws, seen=seen):
            timed, slow = cell.measure == "latency", 1.0 if cell.measure in seen else first
            seen.add(cell.measure)
            stretched = (1.0 + 0.3 * (load - 1.0)) * min(slow, 1.5) if timed else load * slow
            return rough_s * stretched * draws.lognormvariate(0.0, 0.3)

        held.append(holds(*foretell(plan, wall_of, monkeypatch), since=1 / 3))
    assert sum(held) >= 14


def test_a_load_that_ends_is_forgotten(monkeypatch):
    plan = make_plan(Selection(cases=("attention-decode",), sizes=("*",), measures=("drift",), fixes=FIXES))
    quiet_from = len(plan.cells) // 3
    wall_of = lambda number, cell, rough_s: rough_s * (3.0 if number < quiet_from else 1.0)  # noqa: E731
    whole_s, foretold = foretell(plan, wall_of, monkeypatch)
    assert not holds(whole_s, foretold, since=0.3)  # nobody foresees it
    assert holds(whole_s, foretold, since=0.7)


def test_a_group_that_is_lost_no_longer_runs_once_its_fixes_do(plan):
    tally, latency = Tally(plan), plan.cells[-1]
    tally.start(latency)
    parts = [replace(latency, fixes=(fix,)) for fix in latency.fixes]
    tally.start(parts[0])
    assert list(tally.running) == parts[:1]
    for part in parts:
        tally.start(part)
        tally.add(part, records_of(part), resumed=False)
    assert not tally.running


def test_each_case_is_answered_once_as_soon_as_it_is_complete():
    plan = make_plan(Selection(cases=("attention-decode", "attention-prefill"), sizes=("tiny",), fixes=("bfloat16",)))
    answered = []
    with ConsoleListener(Console(file=io.StringIO()), verbose=False, answer=answered.append).progress(plan) as progress:
        for cell in plan.cells:
            settle(progress, cell)
            left = {other.case for other in plan.cells[plan.cells.index(cell) + 1 :]}
            assert (cell.case in answered) == (cell.case not in left)
    assert answered == ["attention-decode", "attention-prefill"]


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
    assert "done in 0:00" in text
