"""The sweep over kernels and versions: what a report says, what is run again, what fails."""

import pytest

from precision_eval.core.errors import ParameterError
from tools import capabilities
from tools.capabilities import (
    ENVIRONMENTS,
    SETTINGS,
    SIGNALS,
    TENSORS,
    capabilities_markdown,
    names,
    read_report,
    sweep,
)

REPORT = """<testsuites><testsuite>
<testcase classname="tests.a" name="test_one"/>
<testcase classname="tests.a" name="test_two"><skipped message="no GPU"/></testcase>
<testcase classname="tests.b" name="test_three[x]"><failure message="1e-3 &gt; 1e-6&#10;more">text</failure></testcase>
<testcase classname="tests.b" name="test_four"><error message="failed on setup">text</error></testcase>
</testsuite></testsuites>"""
TOOK = {
    "python": "3.11.7",
    "torch": "2.13.0",
    "ATen": "AVX2",
    "MKL": "Vector Extensions (Intel(R) AVX2) enabled",
    "OpenBLAS": "Zen",
}


def test_a_report_is_counted_and_failures_are_named():
    assert read_report(REPORT) == {
        "passed": 1,
        "skipped": 1,
        "failures": {"tests.b::test_three[x]": "1e-3 > 1e-6", "tests.b::test_four": "failed on setup"},
    }


@pytest.fixture
def runs(monkeypatch):
    """Replace pytest; returns what was run, as variables and tests."""
    made = []

    def run(interpreter, variables, workers, tests):
        made.append((dict(variables), tuple(tests)))
        failures = {"tests.a::test_one": "1 > 0"} if variables.get("ATEN_CPU_CAPABILITY") == "avx2" else {}
        counts = {"passed": 3, "skipped": 0, "failures": failures}
        return {"variables": dict(variables), "tests": list(tests), "took": TOOK, "seconds": 1.0, **counts}

    monkeypatch.setattr(capabilities, "_run_tests", run)
    monkeypatch.setattr(capabilities, "_commit", lambda: "c0ffee")
    return made


def test_each_setting_runs_once_a_commit_and_what_failed_is_told_again(runs, tmp_path, monkeypatch):
    path = tmp_path / "lines.jsonl"
    chosen = ["ATen AVX2", "OpenBLAS Zen", "8 threads"]
    assert sweep(path, chosen) == ["ATen AVX2"] == sweep(path, chosen)
    assert runs == [
        (SETTINGS["ATen AVX2"], TENSORS),
        ({"OPENBLAS_CORETYPE": "Zen"}, SIGNALS),
        ({"OMP_NUM_THREADS": "8"}, (*SIGNALS, *TENSORS)),
    ]
    monkeypatch.setattr(capabilities, "_commit", lambda: "decade")
    sweep(path, ["OpenBLAS Zen"])
    assert len(runs) == 4
    rows = [
        line for line in capabilities_markdown(path, path).splitlines() if "OPENBLAS" in line and "ATEN" not in line
    ]
    assert rows == ["| OPENBLAS_CORETYPE=Zen | 3 | 0 |"]


def test_an_unknown_setting_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(ParameterError, match="setting 'AVX9' is unknown; known: as it is; ATen default"):
        sweep(tmp_path / "lines.jsonl", ["AVX9"])


def test_every_variable_is_one_that_a_library_reads():
    known = {"ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE"}
    known |= {"OPENBLAS_CORETYPE", "OMP_NUM_THREADS"}
    assert {name for variables in SETTINGS.values() for name in variables} == known
    assert names()[-len(ENVIRONMENTS) :] == [f"Python {python}, torch {torch}" for python, torch in ENVIRONMENTS]
