"""Which cells are planned, recorded and taken over; the measuring itself is put in the test's hands."""

import json
from concurrent.futures import Executor, Future

import pytest

from precision_eval.core.cells import failed, passed
from precision_eval.core.workers import WorkerCrashedError
from precision_eval.history import outcomes
from precision_eval.history.outcomes import figure, outcomes_of
from precision_eval.history.tracking import FULL, QUICK, FixFailedError, NotApplicableError, TrackedCell, metric_by_id
from precision_eval.measure.registry import CellResult

DECODE = TrackedCell(case="attention-decode", mode="eager", size="dia")
VOICE = TrackedCell(case="voice", mode="eager", size="default")


class Canned(Executor):
    """Answers each cell by ``statuses`` (passed where not listed) and keeps what it was asked for."""

    cells, statuses = [], {}

    def __init__(self, *arguments, **options):
        pass

    def submit(self, run_cell, cell, run_dir, measures):
        self.cells.append(cell)
        future = Future()
        status = self.statuses.get((cell.fixes[0], cell.measure), "passed")
        if isinstance(status, Exception):
            future.set_exception(status)
            return future
        data = {
            "latency": {
                "ratio_to_baseline": [1.0, 2.0, 3.0],
                "ratio_to_anchor": [1.0, 2.0, 3.0],
                "clock": ["wall"] * 3,
                "blocks": [9] * 3,
            },
            "divergence": {"streams": 4, "diverged": 1},
        }.get(cell.measure, {"relative_error": 0.5})
        made = [passed(fix, data) if status == "passed" else failed(fix, status, "because") for fix in cell.fixes]
        future.set_result(CellResult(tuple(made), "2026-01-01T00:00:00+00:00", 0.0))
        return future


@pytest.fixture
def cells(monkeypatch):
    monkeypatch.setattr(Canned, "cells", [])
    monkeypatch.setattr(Canned, "statuses", {})
    monkeypatch.setattr(outcomes, "IsolatedExecutor", Canned)
    monkeypatch.setattr(outcomes, "collect", lambda device: {"device": device})
    return Canned


def measured(cells, measure):
    return [fix for cell in cells.cells if cell.measure == measure for fix in cell.fixes]


def test_a_measure_is_run_once_for_all_fixes_and_recorded(cells, tmp_path):
    first = outcomes_of(DECODE, "trace", folder=tmp_path, effort=FULL)
    count = len(cells.cells)
    assert count == len(first) == 7  # every fix that has the mode; no one project is meant, so no upstream
    assert outcomes_of(DECODE, "trace", folder=tmp_path, effort=FULL) == first
    outcomes_of(DECODE, "drift", folder=tmp_path, effort=FULL)
    assert measured(cells, "trace") == list(first)  # not again for the measure that comes after it


def test_a_fix_that_raises_is_not_measured_on_and_keeps_its_status(cells, tmp_path):
    cells.statuses["as_shipped", "trace"] = "raised"
    records = outcomes_of(DECODE, "drift", folder=tmp_path, effort=FULL)
    assert (records["as_shipped"].status, records["as_shipped"].reason) == ("raised", "trace: because")
    assert "as_shipped" not in measured(cells, "drift")
    assert records["bfloat16"].data["relative_error"] == 0.5


def test_one_that_crashes_costs_itself_only_and_is_not_tried_again(cells, tmp_path):
    cells.statuses["bfloat16", "drift"] = WorkerCrashedError("the worker was killed by SIGSEGV")
    records = outcomes_of(DECODE, "drift", folder=tmp_path, effort=FULL)
    assert [fix for fix, record in records.items() if record.status != "passed"] == ["bfloat16"]
    count = len(cells.cells)
    with pytest.raises(FixFailedError, match="bfloat16 crashed: the worker was killed by SIGSEGV"):
        figure(DECODE, "bfloat16", metric_by_id("drift"), folder=tmp_path, effort=FULL)
    assert figure(DECODE, "float16", metric_by_id("drift"), folder=tmp_path, effort=FULL) == 0.5
    assert figure(DECODE, "bfloat16", metric_by_id("status"), folder=tmp_path, effort=FULL) == 1
    assert len(cells.cells) == count


def test_latency_is_one_cell_of_the_fixes_that_run(cells, tmp_path):
    cells.statuses["as_shipped", "trace"] = "raised"
    assert figure(DECODE, "bfloat16", metric_by_id("latency_ratio"), folder=tmp_path, effort=FULL) == (1.0, 2.0, 3.0)
    (timed,) = (cell for cell in cells.cells if cell.measure == "latency")
    assert "as_shipped" not in timed.fixes
    assert timed.options.processes == 3


def test_the_voice_is_held_to_references_and_no_control_is_made(cells, tmp_path):
    outcomes_of(VOICE, "divergence", folder=tmp_path, effort=FULL)
    assert measured(cells, "streams")[0] == "reference"
    assert "reference" not in measured(cells, "divergence")
    outcomes_of(VOICE, "audio", folder=tmp_path, effort=FULL)
    assert measured(cells, "synthesis")[:2] == ["reference", "noise_floor"]
    assert not any(fix.startswith("control") for cell in cells.cells for fix in cell.fixes)


def test_quick_measures_all_fixes_of_a_measure_in_one_worker_and_a_crash_costs_one_fix(cells, tmp_path):
    cells.statuses["as_shipped", "drift"] = WorkerCrashedError("the worker was killed by SIGSEGV")
    records = outcomes_of(DECODE, "drift", folder=tmp_path, effort=QUICK)
    assert [fix for fix, record in records.items() if record.status != "passed"] == ["as_shipped"]
    begun = [(cell.measure, len(cell.fixes)) for cell in cells.cells]
    assert (begun.count(("trace", 7)), begun.count(("memory", 7)), begun.count(("drift", 7))) == (1, 1, 1)
    assert begun.count(("drift", 1)) == 7


def test_fixes_in_one_worker_are_measured_one_after_the_other(monkeypatch, tmp_path):
    cell = outcomes.plan_of(DECODE.at(QUICK), "drift", QUICK).cells[0]

    def run_cell(one, run_dir, measures):
        assert (run_dir, measures) == (tmp_path, outcomes.TRACKED)
        return CellResult((passed(one.fixes[0], {"alone": len(one.fixes)}),), "2026-01-01T00:00:00+00:00", 0.0)

    monkeypatch.setattr(outcomes, "run_cell", run_cell)
    found = outcomes.fix_by_fix(cell, tmp_path)
    assert [(outcome.fix, outcome.data) for outcome in found] == [(fix, {"alone": 1}) for fix in cell.fixes]


def test_places_have_records_of_their_own_and_one_environment(cells, tmp_path):
    for case in ("attention-decode", "attention-prefill"):
        outcomes_of(TrackedCell(case=case, mode="eager", size="dia"), "trace", folder=tmp_path, effort=FULL)
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json*"))
    places = [f"run.full/attention-{name}.eager.dia/records.jsonl" for name in ("decode", "prefill")]
    assert files == [*places, "run.full/environment.json"]


def test_quick_measures_the_tiny_size_and_few_compiled_apart_from_full(cells, tmp_path):
    figure(DECODE, "bfloat16", metric_by_id("status"), folder=tmp_path, effort=QUICK)
    assert {cell.size for cell in cells.cells} == {"tiny"}
    count, traced = len(cells.cells), len(measured(cells, "trace"))
    figure(DECODE, "bfloat16", metric_by_id("drift"), folder=tmp_path, effort=QUICK)
    assert len(cells.cells) == count, "all that is tracked of a place was measured at once"
    outcomes_of(TrackedCell(case="attention-decode", mode="eager", size="tiny"), "trace", folder=tmp_path, effort=FULL)
    assert len(measured(cells, "trace")) == 2 * traced
    compiled = TrackedCell(case="attention-decode", mode="compiled", size="dia")
    with pytest.raises(NotApplicableError, match="left out of a quick run, compiled"):
        figure(compiled, "bfloat16", metric_by_id("status"), folder=tmp_path, effort=QUICK)
    assert figure(compiled, "full_float32", metric_by_id("status"), folder=tmp_path, effort=QUICK) == 1


def test_on_a_gpu_one_process_times_by_both_clocks_in_a_folder_of_its_own(cells, tmp_path):
    outcomes_of(DECODE, "latency", folder=tmp_path, effort=FULL)
    on_cpu = cells.cells[-1]
    place = TrackedCell(case="attention-decode", mode="cuda", size="dia")
    outcomes_of(place, "latency", folder=tmp_path, effort=FULL)
    cell = cells.cells[-1]
    assert (cell.device, cell.mode, cell.options.processes) == ("cuda:0", "eager", 1)
    assert cell.options.budget_s == pytest.approx(on_cpu.options.processes * on_cpu.options.budget_s)
    assert {json.loads((folder / "environment.json").read_text())["device"] for folder in tmp_path.iterdir()} == {
        "cpu",
        "cuda:0",
    }
