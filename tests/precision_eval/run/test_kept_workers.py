"""Cells that share a worker, as on CUDA: records as of a process a cell, and what a lost worker costs. No GPU here."""

import os
import signal
import sys
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path

import pytest
import toy
from executor_calls import alive, wait_for
from toy_plans import plan_of, ran, run, status

from precision_eval.core.cells import SUITE_FAILED, Options, passed
from precision_eval.core.records import RecordFile
from precision_eval.core.workers import WorkerCrashedError, WorkerStoppedError
from precision_eval.measure.registry import CASE_BITS, CellResult
from precision_eval.run import executor, session
from precision_eval.run.executor import IsolatedExecutor, KeptExecutor
from precision_eval.run.plan import Selection, make_plan
from precision_eval.run.runner import Silent, worker_name
from precision_eval.run.tiers import DEFAULT, QUICK

SUPPORT = str(Path(__file__).parents[2] / "support")


@pytest.fixture(autouse=True)
def _toy_importable(monkeypatch):
    monkeypatch.syspath_prepend(SUPPORT)
    monkeypatch.setitem(sys.modules, "toy", toy)  # other tests drop it, and a function is pickled by its module


@pytest.fixture(scope="module", autouse=True)
def _server():
    """A fork server that has imported what workers import here, so that their limits of time are for what they do."""
    executor._end_fork_server()
    KeptExecutor(
        preload=("torch", "torch._dynamo", "precision_eval.measure.kept", "precision_eval.measure.generic")
    ).shutdown()
    yield
    executor._end_fork_server()


def pids(records):
    return {record.fix: record.data["pid"] for record in records if record.data}


def test_cells_of_a_case_share_a_worker_and_a_lost_one_costs_its_cell(tmp_path):
    plan = plan_of("a", "dies", "b", "takes", "c", "hangs", "d", "nan", measures=("first",))
    with KeptExecutor(timeout_s=4.0) as workers:
        records = run(plan, tmp_path, workers)
    assert {fix: found for (fix, _), found in status(records).items()} == {
        **dict.fromkeys("abcd", "passed"),
        **{"dies": "crashed", "takes": "out_of_memory", "hangs": "timed_out", "nan": "non_finite"},
    }
    found = pids(records)
    assert found["b"] == found["c"]  # memory was freed
    assert len({found["a"], found["b"], found["d"]}) == 3
    assert not any(alive(pid) for pid in found.values())
    assert sum(line.startswith("toy/") for line in ran(tmp_path)) == 8


@pytest.mark.parametrize(("fix", "before"), [("breaks", "RuntimeError: CUDA error"), ("breaks_late", "RuntimeError")])
def test_a_device_that_answers_with_errors_ends_its_worker(tmp_path, fix, before):
    with KeptExecutor() as workers:
        records = run(plan_of("a", fix, "b", "c", measures=("first",)), tmp_path, workers)
    broken = next(record for record in records if record.fix == fix)
    assert broken.status == "raised"
    assert broken.reason.startswith(before)
    assert "device-side assert triggered" in broken.reason
    found = pids(records)
    assert found["a"] != found["b"] == found["c"]


def test_of_a_group_only_the_fix_that_breaks_the_device_is_lost(tmp_path):
    with KeptExecutor() as workers:
        records = run(plan_of("a", "asserts", "b", measures=("group",)), tmp_path, workers)
    timed = {record.fix: record.status for record in records if record.measure == "group"}
    assert timed == {"a": "passed", "asserts": "raised", "b": "passed"}


def test_interrupted_it_ends_its_worker_and_goes_on_later(tmp_path):
    class Interrupts(Silent):
        def started(self, cell):
            if cell.fixes == ("c",):
                raise KeyboardInterrupt

    plan = plan_of("a", "b", "c", "d", measures=("first",))
    with pytest.raises(KeyboardInterrupt), KeptExecutor() as workers:
        run(plan, tmp_path, workers, progress=Interrupts())
    kept = RecordFile(tmp_path / "records.jsonl").read().records
    assert {record.fix for record in kept} == {"a", "b"}
    wait_for(lambda: not any(alive(pid) for pid in pids(kept).values()))
    with KeptExecutor() as workers:
        records = run(plan, tmp_path, workers)
    assert set(status(records).values()) == {"passed"}
    assert {record.data["pid"] for record in records if record.fix in "cd"}.isdisjoint(pids(kept).values())


def test_a_worker_that_dies_between_calls_costs_none(tmp_path):
    with KeptExecutor() as workers:
        first = workers.submit_to("x", os.getpid).result()
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: not alive(first))
        second = workers.submit_to("x", os.getpid).result()
        assert second == workers.submit_to("x", os.getpid).result() != first
        assert workers.submit_to("y", os.getpid).result() != second
        with pytest.raises(WorkerCrashedError, match="SIGKILL"):
            workers.submit_to("y", toy.act, "dies", tmp_path).result()
    assert not alive(second)


def test_what_runs_is_stopped_with_its_worker(tmp_path):
    workers = KeptExecutor()
    pid = workers.submit_to("x", os.getpid).result()
    hanging = workers.submit_to("x", toy.act, "hangs", tmp_path)
    wait_for(hanging.running)
    workers.stop()
    assert isinstance(hanging.exception(), WorkerStoppedError)
    wait_for(lambda: not alive(pid))


def test_what_a_cell_sets_in_its_process_is_put_back(tmp_path):
    names = [name for change in toy._CHANGES for name in (f"before_{change}", change, f"after_{change}")]
    with KeptExecutor() as workers:
        records = run(plan_of(*names, measures=("settings",)), tmp_path, workers)
    assert set(status(records).values()) == {"passed"}
    first = records[0]
    for record in records:
        changed = {name for name in first.data["found"] if record.data["found"][name] != first.data["found"][name]}
        assert not changed, f"before {record.fix}"
    assert len(set(pids(records).values())) == 1


def records_of(plan, workers, folder):
    with workers:
        return {record.cell: record for record in run(plan, folder, workers)}


def comparable(record):
    """What of a record is no time, of no process, and not the mark of a kept case."""
    names = () if record.measure == "latency" else set(record.data or ()) - {CASE_BITS, "rss_peak_bytes"}
    return record.status, record.reason, {name: record.data[name] for name in names}


@pytest.mark.slow
def test_records_are_those_of_a_process_a_cell_in_any_order(tmp_path):
    selection = Selection(
        cases=("metavoice-decode",), fixes=("as_shipped", "kv_to_query", "bfloat16"), sizes=("tiny",),
        measures=("trace", "drift", "memory", "latency"), options=Options(budget_s=0.02),
    )  # fmt: skip
    plan = make_plan(selection)
    alone = records_of(plan, IsolatedExecutor(2), tmp_path / "alone")
    kept = records_of(plan, KeptExecutor(), tmp_path / "kept")
    turned = records_of(replace(plan, cells=plan.cells[::-1]), KeptExecutor(), tmp_path / "turned")
    assert alone.keys() == kept.keys() == turned.keys()
    assert {record.status for record in alone.values()} >= {"passed", "raised"}
    for cell, record in alone.items():
        assert comparable(record) == comparable(kept[cell]) == comparable(turned[cell]), cell
    bits = {record.data[CASE_BITS] for run in (kept, turned) for record in run.values() if record.data}
    assert len(bits) == 1


@pytest.mark.parametrize("tier", [QUICK, DEFAULT])
def test_on_cuda_each_case_and_size_has_one_worker(tmp_path, monkeypatch, tier):
    """As many starts as cases and sizes, where there were as many as cells; counted without a GPU."""
    handed = []

    def submit_to(self, name, place, cell, run_dir, measures):
        handed.append(name)
        future = Future()
        outcomes = tuple(passed(fix, {"value": 1.0}) for fix in cell.fixes)
        future.set_result(CellResult(outcomes, "2026-01-01T00:00:00+00:00", 0.1))
        return future

    monkeypatch.setattr(KeptExecutor, "submit_to", submit_to)
    selection = Selection(device="cuda:0", options=tier.options(None), measures=tier.measures(None))
    plan = session.plan_of(replace(selection, without=tier.leaves_out_unasked), tier)
    with KeptExecutor() as workers:
        run(plan, tmp_path, workers)
    starts = [name for before, name in zip([None, *handed], handed, strict=False) if name != before]
    assert len(handed) == len(plan.cells)
    assert sorted(starts) == sorted({(f"{cell.case}@cuda:0:{cell.size}") for cell in plan.cells})
    assert len(starts) * 10 < len(handed)


def test_a_candidate_of_somebodys_own_has_a_worker_of_its_own():
    plan = plan_of("a", "my.py:change", measures=("first", "group"))
    names = [worker_name(cell) for cell in plan.cells]
    assert names[0] == "toy@cpu:s"
    assert names[1] == names[2] == "toy@cpu:s+my.py:change"


def test_figures_of_a_case_with_other_numbers_are_refused(tmp_path):
    class Canned(Executor):
        def submit(self, fn, cell, *args):
            future = Future()
            (fix,) = cell.fixes
            bits = "bb" if fix == "b" else "aa"
            future.set_result(CellResult((passed(fix, {"value": 1.0, CASE_BITS: bits}),), "2026-01-01T00:00:00Z", 0.1))
            return future

    records = run(plan_of("a", measures=("first",)), tmp_path, Canned())
    records = run(plan_of("a", "b", "c", measures=("first",)), tmp_path, Canned())  # resumed
    assert {fix: found for (fix, _), found in status(records).items()} == {"a": "passed", "b": "crashed", "c": "passed"}
    refused = next(record for record in records if record.fix == "b")
    assert refused.data is None
    assert refused.reason.startswith(f"{SUITE_FAILED}OtherNumbersError: toy at size s on cpu holds other numbers (bb)")
