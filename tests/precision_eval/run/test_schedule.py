"""Cells on many lanes by a clock that only counts: how long the whole takes, against the least that it could."""

import heapq
import os
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


OFF = {"trace": 0.5, "drift": 0.45, "memory": 0.15, "latency": 4.4}
"""What cells of results/ took over what their measure expects, the middle of each; it is learnt while cells end."""

CASES_SD, CELLS_SD = 0.45, 0.5
"""Of the logarithm of what they took, in results/: from case to case, and from cell to cell of a case and measure."""


def as_recorded(plan, rng):
    """Durations like those of committed results, of which nobody knows anything beforehand."""
    case = {name: rng.lognormvariate(0.0, CASES_SD) for name in plan.digests}
    return {
        cell.id: measure_by_name(cell.measure).expected_s(cell)
        * OFF[cell.measure] * case[cell.case] * rng.lognormvariate(0.0, CELLS_SD)
        for cell in plan.cells
    }  # fmt: skip


def each_alone(plan, rng):
    """Durations around what is expected, each drawn for itself: no cell tells anything of another."""
    return {
        cell.id: measure_by_name(cell.measure).expected_s(cell) * rng.lognormvariate(0.0, 0.3) for cell in plan.cells
    }


def knowing(seconds):
    """The order of who knows how long each cell takes."""
    return type("Known", (runner.Durations,), {"expected_s": lambda self, cell: seconds[cell.id]})


def in_the_plans_order(monkeypatch):
    """Leave what waits as the plan has it."""
    monkeypatch.setattr(runner._Run, "_order", lambda self: None)


def untaught(monkeypatch):
    """Learn nothing from cells that end."""
    monkeypatch.setattr(runner.Durations, "add", lambda self, cell, seconds: None)


SIZES = [(20, 20), pytest.param(400, 1000, marks=pytest.mark.slow)]


def makespan(tmp_path, monkeypatch, cases, lanes, durations=as_recorded, *, known=False):
    """Run a plan by the clock; return its duration over the least that it could take."""
    rng, plan = random.Random(0), plan_of(cases)
    seconds = durations(plan, rng)
    if known:
        monkeypatch.setattr(runner, "Durations", knowing(seconds))
    clock = Clock(seconds)
    monkeypatch.setattr(runner, "wait", clock.wait)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    records = runner.run_plan(
        plan, clock, RecordFile(tmp_path / "records.jsonl"), environment="e", max_parallel=lanes, lanes=True
    )
    after_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grown_mib = (after_kib - before_kib) / 1024
    longest = max(
        seconds[cell.id] + max((seconds[name] for name in plan.after[cell.id]), default=0.0) for cell in plan.cells
    )
    bound = max(sum(seconds.values()) / lanes, longest)
    knowledge = f"{durations.__name__}{', known beforehand' if known else ''}"
    print(
        f"{len(plan.cells)} cells, {lanes} lanes, {knowledge}: {clock.now / bound:.3f} of the bound {bound:.1f} s",
        end=", ",
    )
    print(f"load {sum(seconds.values()) / lanes:.1f} s; grew by {grown_mib:.0f} to {after_kib / 1024:.0f} MiB")
    assert clock.most == lanes
    assert len(records) == sum(len(cell.fixes) for cell in plan.cells)
    assert clock.now <= sum(seconds.values()) / lanes + longest  # Graham 1966, whatever the order
    assert bound <= clock.now
    assert grown_mib < 500
    return clock.now / bound


@pytest.mark.parametrize(("cases", "lanes"), SIZES)
def test_the_makespan_is_near_the_bound(tmp_path, monkeypatch, cases, lanes):
    assert makespan(tmp_path, monkeypatch, cases, lanes) <= 1.10


@pytest.mark.parametrize("durations", [as_recorded, each_alone])
@pytest.mark.parametrize(("cases", "lanes"), SIZES)
def test_known_durations_reach_the_bound(tmp_path, monkeypatch, cases, lanes, durations):
    assert makespan(tmp_path, monkeypatch, cases, lanes, durations, known=True) <= 1.05


@pytest.mark.parametrize(("cases", "lanes"), SIZES)
def test_where_no_cell_tells_anything_of_another_the_end_is_further(tmp_path, monkeypatch, cases, lanes):
    """Ten cells a lane, all expected to take nearly the same: what the last ones take beyond that, nobody knows."""
    assert makespan(tmp_path, monkeypatch, cases, lanes, each_alone) <= 1.2


@pytest.mark.parametrize("fault", [in_the_plans_order, untaught])
def test_without_an_order_or_what_ended_it_would_take_longer(tmp_path, monkeypatch, fault):
    """Planted faults: the same cells miss the bound."""
    fault(monkeypatch)
    assert makespan(tmp_path, monkeypatch, 20, 20) > 1.10
