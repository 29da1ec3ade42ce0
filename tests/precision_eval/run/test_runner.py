"""The runner with real workers: statuses, gates, groups, resumption, interruption."""

import errno
import sys
from concurrent.futures import Executor, Future
from pathlib import Path

import pytest
from toy_plans import Case, Inline, plan_of, ran, run, status

from precision_eval.core.cells import Options
from precision_eval.core.records import RecordFile, latest
from precision_eval.run.executor import IsolatedExecutor
from precision_eval.run.runner import Silent


@pytest.fixture(autouse=True)
def _toy_importable(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "support"))
    yield
    sys.modules.pop("toy", None)


def test_every_status_with_real_workers(tmp_path):
    plan = plan_of("good", "dies", "hangs", "takes", "unsupported", "raises", "nan", measures=("first", "group"))
    with IsolatedExecutor(2, timeout_s=4.0) as executor:
        records = run(plan, tmp_path, executor, max_parallel=2)
    found = {record.fix: record for record in records if record.measure == "first"}
    assert {fix: record.status for fix, record in found.items()} == {
        "good": "passed",
        "dies": "crashed",
        "hangs": "timed_out",
        "takes": "out_of_memory",
        "unsupported": "unsupported",
        "raises": "raised",
        "nan": "non_finite",
    }
    assert found["raises"].reason == "RuntimeError: Expected query, key, and value to have the same dtype"
    assert found["dies"].reason.startswith("the worker was killed by SIGKILL")
    assert found["nan"].reason == "value = nan is not finite"
    assert found["nan"].data is None
    timed = {record.fix: record for record in records if record.measure == "group"}
    assert timed["good"].data["together"] == 1  # what did not pass is not timed, and says why
    assert timed["dies"].status == "crashed"
    assert timed["raises"].reason.startswith("first: RuntimeError: Expected query")
    assert RecordFile(tmp_path / "records.jsonl").read().records == records


@pytest.mark.parametrize(
    ("fix", "outcome", "reason"),
    [("weak", "crashed", "the worker was killed by SIGKILL"), ("rough", "raised", "RuntimeError: too rough")],
)
def test_a_group_that_is_lost_or_raises_is_run_one_by_one(tmp_path, fix, outcome, reason):
    plan = plan_of("good", fix, "also", measures=("first", "group"))
    with IsolatedExecutor(2) as executor:
        records = run(plan, tmp_path, executor, max_parallel=2)
    timed = {record.fix: record for record in records if record.measure == "group"}
    assert {name: record.status for name, record in timed.items()} == {"good": "passed", fix: outcome, "also": "passed"}
    assert timed["good"].data["together"] == 1
    assert timed["good"].data["doubts"][0].startswith("run one by one: 3 fixes together")
    assert timed[fix].reason.startswith(reason)


def test_timed_cells_run_last_and_alone(tmp_path):
    class Watch(Silent):
        running: set[str] = set()  # noqa: RUF012
        seen: list[set[str]] = []  # noqa: RUF012

        def started(self, cell):
            self.running.add(cell.id)
            self.seen.append(set(self.running))

        def finished(self, cell, records, *, resumed):
            self.running.discard(cell.id)

    watch = Watch()
    with IsolatedExecutor(2) as executor:
        run(plan_of("a", "b", "c"), tmp_path, executor, progress=watch, max_parallel=2)
    assert max(len(together) for together in watch.seen) == 2
    assert all(len(together) == 1 for together in watch.seen if any("#group" in name for name in together))
    assert ran(tmp_path)[-1].endswith("#group")


def test_resume_runs_nothing_twice(tmp_path):
    first = run(plan_of("a", "b"), tmp_path)
    before = ran(tmp_path)
    again = run(plan_of("a", "b"), tmp_path)
    assert ran(tmp_path) == before
    assert sorted(again, key=lambda r: r.cell) == sorted(first, key=lambda r: r.cell)
    assert len(RecordFile(tmp_path / "records.jsonl").read().records) == len(first)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"options": Options(minutes=9.0)}, {"second"}),  # only what depends on the option
        ({"options": Options(seed=9)}, {"first", "second", "group"}),
        ({"threads": 2}, {"first", "second", "group"}),
        ({"case": Case(digest="d2")}, {"first", "second", "group"}),
    ],
)
def test_resume_measures_again_what_has_changed(tmp_path, change, expected):
    run(plan_of("a"), tmp_path)
    (tmp_path / "ran.txt").unlink()
    run(plan_of("a", **change), tmp_path)
    assert {name.split("#")[1] for name in ran(tmp_path)} == expected


def test_other_environment_is_measured_again(tmp_path):
    run(plan_of("a"), tmp_path)
    run(plan_of("a"), tmp_path, environment="other")
    assert len(ran(tmp_path)) == 6
    stored = RecordFile(tmp_path / "records.jsonl").read().records
    assert {record.environment for record in latest(stored).values()} == {"other"}


@pytest.mark.parametrize("stop_at", [1, 2, 4])
def test_interrupted_run_keeps_and_continues(tmp_path, stop_at):
    plan = plan_of("a", "b")
    with pytest.raises(KeyboardInterrupt):
        run(plan, tmp_path, Inline(interrupt_at=stop_at), max_parallel=1)
    kept = len(RecordFile(tmp_path / "records.jsonl").read().records)
    assert kept == stop_at - 1
    records = run(plan, tmp_path)
    assert len(records) == 6
    assert len(ran(tmp_path)) == len(set(ran(tmp_path)))  # nothing ran twice


def test_torn_tail_costs_one_cell(tmp_path):
    plan = plan_of("a", "b", measures=("first",))
    run(plan, tmp_path)
    path = tmp_path / "records.jsonl"
    path.write_bytes(path.read_bytes()[:-30])
    records = run(plan, tmp_path)
    assert status(records) == {("a", "first"): "passed", ("b", "first"): "passed"}
    assert ran(tmp_path).count("toy/b/eager@cpu:s#first") == 2
    assert ran(tmp_path).count("toy/a/eager@cpu:s#first") == 1


def test_what_crashed_is_measured_again_with_what_waited_for_it(tmp_path):
    plan = plan_of("dies_once", "good", measures=("first", "second"))
    with IsolatedExecutor(2) as executor:
        first = run(plan, tmp_path, executor, max_parallel=2)
    assert status(first)["dies_once", "first"] == status(first)["dies_once", "second"] == "crashed"
    assert next(record for record in first if record.measure == "second").reason.startswith("first: the worker was")
    before = ran(tmp_path)
    second = run(plan, tmp_path)
    assert set(status(second).values()) == {"passed"}
    assert ran(tmp_path)[len(before) :] == [f"toy/dies_once/eager@cpu:s#{name}" for name in ("first", "second")]


def test_a_cell_that_crashes_every_time_is_tried_once_per_run(tmp_path):
    plan = plan_of("dies", measures=("first",))
    for times in (1, 2):
        with IsolatedExecutor(1) as executor:
            (record,) = run(plan, tmp_path, executor)
        assert (record.status, len(ran(tmp_path))) == ("crashed", times)


@pytest.mark.parametrize(("timeout_s", "again"), [(None, False), (1.0, False), (60.0, True)])
def test_what_timed_out_is_measured_again_where_it_may_take_longer(tmp_path, timeout_s, again):
    plan = plan_of("hangs", measures=("first", "second"))
    with IsolatedExecutor(1, timeout_s=1.0) as executor:
        assert set(status(run(plan, tmp_path, executor)).values()) == {"timed_out"}
    with IsolatedExecutor(1, timeout_s=1.0) as executor:
        records = run(plan, tmp_path, executor, timeout_s=timeout_s)
    assert set(status(records).values()) == {"timed_out"}  # it stands, or has hung once more
    assert len(ran(tmp_path)) == (2 if again else 1)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("ma")])
def test_a_passed_cell_whose_file_is_not_whole_is_measured_again(tmp_path, damage):
    plan = plan_of("writes", "good", measures=("first",))
    run(plan, tmp_path)
    run(plan, tmp_path)
    assert len(ran(tmp_path)) == 2
    damage(tmp_path / "made.txt")
    run(plan, tmp_path)
    assert ran(tmp_path)[2:] == ["toy/writes/eager@cpu:s#first"]
    assert (tmp_path / "made.txt").read_text() == "made"


def test_an_executor_that_fails_is_no_result_of_the_fix(tmp_path):
    class NoProcess(Executor):
        def submit(self, fn, /, *args, **kwargs):
            future: Future = Future()
            future.set_exception(OSError(errno.EAGAIN, "Resource temporarily unavailable"))
            return future

    (record,) = run(plan_of("good", measures=("first",)), tmp_path, NoProcess())
    assert record.status == "crashed"
    assert "Resource temporarily unavailable" in record.reason
    assert status(run(plan_of("good", measures=("first",)), tmp_path)) == {("good", "first"): "passed"}


def test_ctrl_c_just_after_a_result_was_written_loses_nothing(tmp_path, monkeypatch):
    plan = plan_of("a", "b", measures=("first",))
    append = RecordFile.append

    def interrupted(file, records):
        append(file, records)
        monkeypatch.setattr(RecordFile, "append", append)
        raise KeyboardInterrupt

    monkeypatch.setattr(RecordFile, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(plan, tmp_path, max_parallel=2)
    assert set(latest(RecordFile(tmp_path / "records.jsonl").read().records)) == {
        "toy/a/eager@cpu:s#first",
        "toy/b/eager@cpu:s#first",  # it had finished too
    }
