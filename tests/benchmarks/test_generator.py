"""How a generated asv class answers: figures, n/a, failures, and what it makes of ``--quick``."""

import math

import pytest
import torch
from torch import nn

from benchmarks import generator
from precision_eval.cases.base import BuiltCase
from precision_eval.cases.systems import Case
from precision_eval.core.cells import failed, passed
from precision_eval.core.records import STATUSES
from precision_eval.history import outcomes, tracking
from precision_eval.history.tracking import FixFailedError, metric_by_id


class Toy(nn.Module):
    """A linear layer that may raise what a library would."""

    def __init__(self, error=None):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.error = error

    def forward(self, x):
        if self.error is not None:
            raise self.error
        return self.linear(x)


def toy(error=None):
    def make(size, *, device, seed):
        torch.manual_seed(seed)
        return BuiltCase(Toy(error).eval(), (torch.ones(2, 4),))

    return Case(
        id="toy", title="toy", explanation="", source="", sizes=("tiny",), default_sizes=("tiny",),
        measures=("trace", "drift", "memory", "latency"), definition=("v1",), make=make,
    )  # fmt: skip


@pytest.fixture
def toy_case(monkeypatch):
    """Return a function that puts a toy in the place of every case and builds its class."""

    def put(error=None):
        monkeypatch.setattr(tracking, "case_by_id", lambda name: toy(error))
        monkeypatch.setattr(generator, "metrics_of", lambda case, mode: metrics)
        made.append(generator._class_of(toy(error), "eager", "benchmarks.eager"))
        return made[-1]

    metrics = [metric_by_id(name) for name in ("time", "status", "drift", "latency_ratio")]
    made = []
    yield put
    for one in made:
        one.time_call._stack.close()


def test_a_call_that_runs_is_timed(toy_case, monkeypatch):
    made, inputs, forward = toy_case()(), [], Toy.forward
    made.time_call.setup("full_float32", "tiny")
    monkeypatch.setattr(Toy, "forward", lambda self, x: inputs.append(x.dtype) or forward(self, x))
    made.time_call("full_float32", "tiny")
    assert inputs == [torch.float32]


@pytest.mark.parametrize("error", [NotImplementedError("no kernel for 'Half'"), RuntimeError("same dtype")])
def test_a_library_that_lacks_something_is_a_failure_and_not_n_a(toy_case, error):
    made = toy_case(error)()
    with pytest.raises(FixFailedError, match=f"raised: {type(error).__name__}: {error}") as found:
        made.time_call.setup("full_float32", "tiny")
    assert not isinstance(found.value, NotImplementedError)  # which asv would show as n/a


def test_output_that_is_not_finite_is_a_failure(toy_case, monkeypatch):
    made = toy_case()()
    monkeypatch.setattr(Toy, "forward", lambda self, x: x * math.nan)
    with pytest.raises(FixFailedError, match="non_finite: 8 of 8 output values"):
        made.time_call.setup("full_float32", "tiny")


def test_a_quick_run_of_asv_gives_no_figure(toy_case, monkeypatch, capsys):
    """asv keeps what a quick run finds, and tiny sizes must not pass for a measurement."""
    made, runner = toy_case()(), {"__name__": "asv_runner.run"}
    monkeypatch.setattr(outcomes, "outcomes_of", answers(full_float32="passed"))
    exec("def run(track, extra_params):\n    return track('full_float32', 'tiny')", runner)
    assert math.isnan(runner["run"](made.track_drift, generator.QUICK_PARAMETERS))
    assert generator.QUICK_NOTE in capsys.readouterr().err
    assert runner["run"](made.track_drift, {}) == 0.25


def answers(**statuses):
    data = {"relative_error": 0.25, "ratio_to_baseline": [1.5, 1.25, 1.75]}

    def outcomes_of(place, measure, *, folder, effort):
        return {
            fix: passed(fix, data) if status == "passed" else failed(fix, status, "because")
            for fix, status in statuses.items()
        }

    return outcomes_of


def test_figures_of_each_status(toy_case, monkeypatch, capsys):
    made = toy_case()()
    statuses = {"as_shipped": "raised", "full_float32": "passed", "bfloat16": "unsupported", "float16": "crashed"}
    monkeypatch.setattr(outcomes, "outcomes_of", answers(**statuses))
    found = {fix: made.track_status(fix, "tiny") for fix in statuses}
    assert found == {fix: STATUSES.index(status) + 1 for fix, status in statuses.items()}
    assert found["as_shipped"] == 2
    assert made.track_drift("full_float32", "tiny") == 0.25
    assert made.track_latency_ratio("full_float32", "tiny") == {"samples": [1.5, 1.25, 1.75], "number": 1}
    assert math.isnan(made.track_drift("bfloat16", "tiny"))
    assert "n/a: unsupported: because" in capsys.readouterr().err
    for fix, status in (("as_shipped", "raised"), ("float16", "crashed")):
        assert made.track_drift(fix, "tiny") is None  # asv's sign for a failed cell
        assert f"failed: {fix} {status}: because" in capsys.readouterr().err
