"""Cells on many lanes by a clock that only counts: how long the whole takes, against the least that it could."""

import heapq
import random
import resource
from concurrent.futures import Executor, Future
from itertools import count

import pytest

from precision_eval.core.cells import Cell, Options, passed
from precision_eval.core.records import RecordFile
from precision_eval.measure.registry import CellResult, measure_by_name
from precision_eval.run import runner
from precision_eval.run.plan import Plan, _predecessors

MEASURES = tuple(measure_by_name(name) for name in ("trace", "drift", "memory", "latency"))
FIXES = tuple(f"fix{number}" for number in range(8))
OPTIONS = Options()


class Clock(Executor):
    """Hands the cells' results out in the order of their ends; nothing is run and nobody waits."""

    def __init__(self, seconds):
        self.seconds, self.now, self.most = seconds, 0.0, 0
        self.queue, self.number = [], count()

    def submit(self, fn, cell, *args):
        future = Future()
        heapq.heappush(self.queue, (self.now + self.seconds[cell.id], next(self.number), future, cell))
        self.most = max(self.most, len(self.queue))
        return future

    def wait(self, running, return_when):
        self.now, _, future, cell = heapq.heappop(self.queue)
        outcomes = tuple(passed(fix, {"value": 1.0}) for fix in cell.fixes)
        future.set_result(CellResult(outcomes, "2026-01-01T00:00:00+00:00", self.seconds[cell.id]))
        return {future}, set(running) - {future}


def plan_of(cases):
    """Cases of four measures under eight fixes: 25 cells each, in the order of a plan."""
    cells, after = [], {}
    for number in range(cases):
        own = [
            Cell(case=f"c{number}", fixes=fixes, mode="eager", device="cpu", size="s", threads=1,
                 measure=measure.name, options=OPTIONS)
            for measure in MEASURES
            for fixes in ([FIXES] if measure.grouped else [(fix,) for fix in FIXES])
        ]  # fmt: skip
        after |= {cell.id: tuple(_predecessors(cell, own, MEASURES)) for cell in own}
        cells += own
    return Plan(tuple(cells), after, {cell.case: "d" for cell in cells}, MEASURES)


def longest_first_of(seconds):
    """The order of who knows how long each cell takes: by its own time and the longest of what waits for it."""

    def order(plan):
        left = {}
        for cell in reversed(plan.cells):
            left[cell.id] = left.get(cell.id, 0.0) + seconds[cell.id]
            for before in plan.after[cell.id]:
                left[before] = max(left.get(before, 0.0), left[cell.id])
        return sorted(plan.cells, key=lambda cell: -left[cell.id])

    return order


SIZES = [(20, 50, 1.1), pytest.param(400, 1000, 2.0, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("cases", "lanes", "most"), SIZES)
@pytest.mark.parametrize("known", [False, True], ids=["expected", "known"])
def test_the_makespan_is_near_the_bound(tmp_path, monkeypatch, cases, lanes, most, known):
    """By what is expected alone; and, where each duration is known beforehand, within 5 % at any size."""
    rng, plan = random.Random(0), plan_of(cases)
    seconds = {
        cell.id: measure_by_name(cell.measure).expected_s(cell) * rng.lognormvariate(0.0, 0.3) for cell in plan.cells
    }
    if known:
        most = 1.05
        monkeypatch.setattr(runner, "_longest_first", longest_first_of(seconds))
    clock = Clock(seconds)
    monkeypatch.setattr(runner, "wait", clock.wait)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    records = runner.run_plan(
        plan, clock, RecordFile(tmp_path / "records.jsonl"), environment="e", max_parallel=lanes, lanes=True
    )
    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) / 1024
    longest = max(
        seconds[cell.id] + max((seconds[name] for name in plan.after[cell.id]), default=0.0) for cell in plan.cells
    )
    bound = max(sum(seconds.values()) / lanes, longest)
    reached = f"{clock.now / bound:.3f} of the bound, {grown_mib:.0f} MiB"
    print(f"{len(plan.cells)} cells, {lanes} lanes, durations {'known' if known else 'expected'}: {reached}")
    assert clock.most == lanes
    assert len(records) == sum(len(cell.fixes) for cell in plan.cells)
    assert clock.now <= sum(seconds.values()) / lanes + longest  # Graham 1966, whatever the order
    assert bound <= clock.now <= most * bound
    assert grown_mib < 500


def test_a_plan_in_its_own_order_would_take_longer(tmp_path, monkeypatch):
    """The planted fault: without the longest first, the same cells miss the bound."""
    monkeypatch.setattr(runner, "_longest_first", lambda plan: list(plan.cells))
    with pytest.raises(AssertionError):
        test_the_makespan_is_near_the_bound(tmp_path, monkeypatch, 20, 50, 1.1, known=False)
