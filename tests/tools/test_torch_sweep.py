"""The loop over asv: every version, then the latencies in rounds that turn back, from where it was stopped."""

import json
import re
from pathlib import Path

import pytest

from precision_eval.core.errors import ParameterError
from tools import torch_sweep
from tools.torch_sweep import LATENCIES, OTHERS, plan_sweep, run_sweep, turns


@pytest.fixture
def runs(monkeypatch):
    """Replace asv; returns the runs: torch version, options, process. A version in `failing` fails."""
    made, failing = [], set()

    class Done:
        stdout = "c0ffee\n"
        returncode = 0

    def run(command, **options):
        if "run" not in command:
            return Done()
        configuration = json.loads(Path(command[command.index("--config") + 1]).read_text())
        (version,) = configuration["matrix"]["req"]["torch"]
        made.append((version, command[-2], options["env"].get(torch_sweep.PROCESS_VARIABLE)))
        done = Done()
        done.returncode = int(version in failing)
        return done

    monkeypatch.setattr(torch_sweep.subprocess, "run", run)
    return made, failing


def test_latencies_come_last_in_rounds_that_turn_back(runs, tmp_path):
    sweep = plan_sweep(["2.8.0", "2.6.0"], results=tmp_path, rounds=2)
    assert run_sweep(sweep) == []
    assert [run for run in runs[0] if run[2] is None] == [
        ("2.6.0", "--skip-existing-successful", None),
        ("2.8.0", "--skip-existing-successful", None),
    ]
    assert [(version, process) for version, _, process in runs[0][2:]] == [
        ("2.6.0", "0"), ("2.8.0", "0"), ("2.8.0", "1"), ("2.6.0", "1"),
    ]  # fmt: skip
    assert [option for _, option, process in runs[0] if process == "1"] == ["--append-samples"] * 2
    assert list(turns(sweep)) == []
    assert list(turns(plan_sweep(["2.6.0"], results=tmp_path, rounds=3))) == [(3, "2.6.0")]


def test_a_version_that_fails_is_named_and_tried_again(runs, tmp_path):
    runs[1].add("2.6.0")
    sweep = plan_sweep(["2.6.0", "2.8.0"], results=tmp_path, rounds=1)
    assert run_sweep(sweep) == ["2.6.0"]
    assert list(turns(sweep)) == [(1, "2.6.0")]


def test_the_patterns_part_the_benchmarks():
    names = (
        "eager.dia.track_latency_ratio",
        "eager.dia.track_drift",
        "eager.dia.time_call(autocast)",
        "b.x.track_status",
    )
    assert [bool(re.search(LATENCIES, name)) for name in names] == [True, False, False, False]
    assert [bool(re.search(OTHERS, name)) for name in names] == [False, True, True, True]


def test_an_unknown_version_is_refused(runs):
    with pytest.raises(ParameterError, match=r"torch 1.13 is not in asv.versions.json; it has 2.6.0, .*; add it there"):
        plan_sweep(["1.13"])
