"""The command that measures drift over seeds: what it asks for, what it keeps, and one drift for real."""

import json

import pytest

from precision_eval.core.errors import RecordError
from precision_eval.core.files import TrialFile
from validation import frame
from validation.versions import seeds
from validation.versions.seeds import EXPERIMENT

CELL, FILE = "attention-decode:tiny", "drift-seeds.jsonl"


@pytest.fixture
def environments(tmp_path):
    for version in ("2.8.0", "2.9.1"):
        folder = tmp_path / "environments" / f"torch{version}-py3.11" / "bin"
        folder.mkdir(parents=True)
        (folder / "python").touch()
    return tmp_path / "environments"


@pytest.fixture
def run(tmp_path, environments, monkeypatch):
    """Run the experiment with interpreters that only write down what they are asked."""
    asked = []
    monkeypatch.setattr(seeds, "measured_elsewhere", lambda python, wanted, count: made(python, wanted, count, asked))

    def call(**given):
        asked.clear()
        options = EXPERIMENT.options({"environments": str(environments), "cells": CELL} | given, out=tmp_path / "out")
        frame.run(EXPERIMENT, options, progress=lambda *step: None)
        return list(asked)

    return call


def made(python, wanted, count, asked):
    version = python.parent.parent.name.removeprefix("torch").partition("-")[0]
    definition = "d" * 64
    for cell, fix in wanted:
        asked.append((version, cell, fix))
        case, _, size = cell.partition(":")
        line = {"mode": "eager", "case": case, "size": size, "fix": fix, "torch_version": version}
        line |= {"benchmark_version": definition, "cpu": "x", "key": key_of(version, cell, fix, count)}
        yield line | {"drift": {str(seed): 1e-3 * (1 + seed) for seed in range(count)}}


def key_of(version, cell, fix, count):
    from precision_eval.cases.systems import case_by_id
    from precision_eval.studies.tracking import metric_by_id, version_of

    definition = version_of(case_by_id(cell.partition(":")[0]), "eager", metric_by_id("drift"))
    return seeds._key(version, cell, fix, count, definition)


def test_every_version_measures_what_is_missing_and_says_what_it_finds(run, tmp_path):
    wanted = [(version, CELL, fix) for version in seeds.VERSIONS for fix in seeds.FIXES]
    assert run() == wanted
    figures = {figure.name: figure.found for figure in EXPERIMENT.figures(TrialFile(tmp_path / "out" / FILE).read())}
    assert figures["2.8.0 → 2.9.1 attention-decode:tiny float16"].startswith("×1.000 [1.000, 1.000] over 8 seeds")
    assert run() == []
    assert run(fixes="bfloat16", versions="2.9.1") == [("2.9.1", CELL, "bfloat16")]
    assert run(seeds="6") == wanted


def test_a_drift_is_measured_for_real_and_its_seeds_differ(tmp_path):
    line = seeds.measured(CELL, "float16", seeds=3)
    json.dumps(line, allow_nan=False)
    assert line["key"] == key_of(line["torch_version"], CELL, "float16", 3)
    assert len(set(line["drift"].values())) == 3
    assert all(1e-6 < value < 1e-2 for value in line["drift"].values())
    TrialFile(tmp_path / "drift-seeds.jsonl").append(line)
    with pytest.raises(RecordError, match="as_shipped raised"):
        seeds.measured(CELL, "as_shipped", seeds=1)
