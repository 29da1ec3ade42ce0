"""The command that measures drift over seeds: what it asks for, what it keeps, and one drift for real."""

import json
import sys

import pytest

from precision_eval.core.errors import RecordError
from precision_eval.core.json_lines import TrialFile

seeds = pytest.importorskip("validation.versions.seeds")
CELL = "attention-decode:tiny"


@pytest.fixture
def environments(tmp_path):
    for version in ("2.8.0", "2.9.1"):
        folder = tmp_path / "environments" / f"torch{version}-py3.11" / "bin"
        folder.mkdir(parents=True)
        (folder / "python").touch()
    return tmp_path / "environments"


@pytest.fixture
def run(tmp_path, environments, monkeypatch):
    """Run the command with interpreters that only write down what they are asked."""
    asked = []
    monkeypatch.setattr(seeds, "_measured_elsewhere", lambda python, wanted, count: made(python, wanted, count, asked))

    def call(*more, out="drift-seeds.jsonl"):
        asked.clear()
        words = ["--environments", str(environments), "--cells", CELL, "--out", str(tmp_path / out), *more]
        monkeypatch.setattr(sys, "argv", ["seeds", *words])
        try:
            return seeds.main(), list(asked)
        except SystemExit as ended:
            return ended.code, list(asked)

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


def test_every_version_measures_what_is_missing_and_says_what_it_finds(run, capsys):
    wanted = [(version, CELL, fix) for version in seeds.VERSIONS for fix in seeds.FIXES]
    assert run() == (0, wanted)
    assert "2.8.0 → 2.9.1 attention-decode:tiny float16: ×1.000 [1.000, 1.000] over 8 seeds" in capsys.readouterr().out
    assert run() == (0, [])
    assert run("--fixes", "bfloat16", "--versions", "2.9.1") == (0, [("2.9.1", CELL, "bfloat16")])
    assert run("--seeds", "6") == (0, wanted)


@pytest.mark.parametrize(
    ("more", "out", "message"),
    [
        (("--versions", "2.8.0,2.12.1"), "drift-seeds.jsonl", "no environment of torch 2.12.1; `precision-eval torch"),
        (("--seeds", "3"), "drift-seeds.jsonl", "--seeds 3 are too few"),
        ((), "other.jsonl", "name it drift-seeds.jsonl"),
    ],
)
def test_bad_input_is_one_line(run, capsys, more, out, message):
    assert run(*more, out=out) == (2, [])
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_drift_is_measured_for_real_and_its_seeds_differ(tmp_path):
    line = seeds.measured(CELL, "float16", seeds=3)
    json.dumps(line, allow_nan=False)
    assert line["key"] == key_of(line["torch_version"], CELL, "float16", 3)
    assert len(set(line["drift"].values())) == 3
    assert all(1e-6 < value < 1e-2 for value in line["drift"].values())
    TrialFile(tmp_path / "drift-seeds.jsonl").append(line)
    with pytest.raises(RecordError, match="as_shipped raised"):
        seeds.measured(CELL, "as_shipped", seeds=1)
