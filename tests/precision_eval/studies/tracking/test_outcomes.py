"""Which outcomes are measured, kept, taken over; the measuring itself is put in the test's hands."""

import json

import pytest

from precision_eval.core.cells import failed, passed
from precision_eval.core.errors import ParameterError
from precision_eval.core.workers import WorkerCrashedError
from precision_eval.measure.registry import CellResult
from precision_eval.studies.tracking import (
    FULL,
    QUICK,
    FixFailedError,
    NotApplicableError,
    Place,
    figure,
    metric_by_id,
    outcomes,
    outcomes_of,
)
from precision_eval.studies.tracking.effort import PROCESS_VARIABLE, process_numbers
from precision_eval.studies.tracking.paired import timed_in_process

DECODE = Place(case="attention-decode", mode="eager", size="dia")
VOICE = Place(case="voice", mode="eager", size="default")


@pytest.fixture
def cells(monkeypatch):
    """Collect what would be measured, and answer each cell by ``statuses`` (passed where not listed)."""
    seen = []

    def call_each(function, arguments, *, at_once=1, timeout_s):
        seen.extend(arguments)
        assert at_once == 1 or function is not timed_in_process
        return [answer(function, *one) for one in arguments]

    def answer(function, cell, second):
        if function is timed_in_process:
            data = {"ratio_to_baseline": 1.0 + second, "ratio_to_anchor": 2.0, "clock": "cpu", "blocks": 15}
            return {fix: passed(fix, data) for fix in cell.fixes}
        (fix,) = cell.fixes
        status = seen_statuses.get((fix, cell.measure), "passed")
        if isinstance(status, WorkerCrashedError):
            return status
        done = passed(fix, {"relative_error": 0.5}) if status == "passed" else failed(fix, status, "because")
        return CellResult((done,), "", 0.0)

    seen_statuses = {}
    monkeypatch.setattr(outcomes, "call_each", call_each)
    return type("Seen", (), {"cells": seen, "statuses": seen_statuses})


def measured(cells, measure):
    return [fix for cell, _ in cells.cells if cell.measure == measure for fix in cell.fixes]


def test_a_measure_is_run_once_for_all_fixes_and_kept(cells, tmp_path):
    first = outcomes_of(DECODE, "trace", folder=tmp_path, effort=FULL)
    count = len(cells.cells)
    assert count == len(first) == 7  # every fix that has the mode; no one project is meant, so no upstream
    assert outcomes_of(DECODE, "trace", folder=tmp_path, effort=FULL) == first
    assert len(cells.cells) == count
    (kept,) = tmp_path.glob("*.json")
    assert json.loads(kept.read_text())["float16"]["status"] == "passed"


def test_a_fix_that_raises_is_not_measured_on_and_keeps_its_reason(cells, tmp_path):
    cells.statuses["as_shipped", "trace"] = "raised"
    found = outcomes_of(DECODE, "drift", folder=tmp_path, effort=FULL)
    assert found["as_shipped"].status == "raised"
    assert found["as_shipped"].reason == "because"
    assert "as_shipped" not in measured(cells, "drift")
    assert found["bfloat16"].data == {"relative_error": 0.5}


def test_one_that_crashes_costs_itself_only(cells, tmp_path):
    cells.statuses["bfloat16", "drift"] = WorkerCrashedError("exit code -11")
    found = outcomes_of(DECODE, "drift", folder=tmp_path, effort=FULL)
    assert [fix for fix, outcome in found.items() if outcome.status != "passed"] == ["bfloat16"]
    with pytest.raises(FixFailedError, match="bfloat16 crashed: exit code -11"):
        figure(DECODE, "bfloat16", metric_by_id("drift"), folder=tmp_path, effort=FULL)
    assert figure(DECODE, "float16", metric_by_id("drift"), folder=tmp_path, effort=FULL) == 0.5
    assert figure(DECODE, "bfloat16", metric_by_id("status"), folder=tmp_path, effort=FULL) == 1


def test_a_round_of_a_sweep_times_one_process_by_its_number(cells, tmp_path, monkeypatch):
    monkeypatch.setenv(PROCESS_VARIABLE, "2")
    found = figure(DECODE, "bfloat16", metric_by_id("latency_ratio"), folder=tmp_path, effort=FULL)
    assert found == (3.0,)
    assert {process for cell, process in cells.cells if cell.measure == "latency"} == {2}
    monkeypatch.setenv(PROCESS_VARIABLE, "two")
    with pytest.raises(ParameterError, match="PRECISION_EVAL_LATENCY_PROCESS is 'two'"):
        process_numbers(FULL)
    assert process_numbers(QUICK, {}) == (0,)


def test_latency_times_what_runs_in_several_processes(cells, tmp_path):
    cells.statuses["as_shipped", "trace"] = "raised"
    found = figure(DECODE, "bfloat16", metric_by_id("latency_ratio"), folder=tmp_path, effort=FULL)
    assert found == (1.0, 2.0, 3.0)
    timed = [(cell, process) for cell, process in cells.cells if cell.measure == "latency"]
    assert [process for _, process in timed] == [0, 1, 2]
    assert "as_shipped" not in timed[0][0].fixes


def test_the_voice_is_held_to_references_and_they_are_no_fixes(cells, tmp_path):
    outcomes_of(VOICE, "divergence", folder=tmp_path, effort=FULL)
    assert measured(cells, "streams")[0] == "reference"
    assert "noise_floor" not in measured(cells, "streams")
    assert "reference" not in measured(cells, "divergence")
    outcomes_of(VOICE, "audio", folder=tmp_path, effort=FULL)
    assert measured(cells, "synthesis")[:2] == ["reference", "noise_floor"]


def test_without_its_reference_nothing_is_compared(cells, tmp_path):
    cells.statuses["reference", "streams"] = "out_of_memory"
    found = outcomes_of(VOICE, "divergence", folder=tmp_path, effort=FULL)
    assert {outcome.status for outcome in found.values()} == {"crashed"}
    assert found["bfloat16"].reason == "its reference reference out_of_memory: because"
    assert not measured(cells, "divergence")


def test_quick_measures_the_tiny_size_and_few_compiled(cells, tmp_path):
    figure(DECODE, "bfloat16", metric_by_id("status"), folder=tmp_path, effort=QUICK)
    assert {cell.size for cell, _ in cells.cells} == {"tiny"}
    compiled = Place(case="attention-decode", mode="compiled", size="dia")
    with pytest.raises(NotApplicableError, match="left out of a quick run, compiled"):
        figure(compiled, "bfloat16", metric_by_id("status"), folder=tmp_path, effort=QUICK)
    assert figure(compiled, "full_float32", metric_by_id("status"), folder=tmp_path, effort=QUICK) == 1


def test_quick_and_full_outcomes_are_kept_apart(cells, tmp_path):
    tiny = Place(case="attention-decode", mode="eager", size="tiny")
    outcomes_of(tiny, "trace", folder=tmp_path, effort=QUICK)
    count = len(cells.cells)
    outcomes_of(tiny, "trace", folder=tmp_path, effort=FULL)
    assert len(cells.cells) == 2 * count
