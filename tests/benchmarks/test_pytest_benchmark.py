"""``pytest benchmarks/`` run for real, in a process of its own."""

import json
import os

import pytest
from programs import ROOT, run_python

FEW_FIXES = """
from precision_eval.history import tracking
names = ("as_shipped", "query_to_half", "kv_to_query", "full_float32")
tracking.FIXES = tuple(fix for fix in tracking.FIXES if fix.id in names)
"""


def run(folder, *arguments):
    (folder / "few_fixes.py").write_text(FEW_FIXES)
    options = ["-p", "no:cacheprovider", "-p", "few_fixes", *arguments]
    return run_python(
        "-m", "pytest", "benchmarks/pytest", *options, PYTHONPATH=os.pathsep.join([str(folder), str(ROOT)])
    )


@pytest.mark.slow
def test_a_real_session_groups_describes_and_judges(tmp_path):
    out = tmp_path / "found.json"
    done = run(
        tmp_path, "--case", "attention-decode", "--size", "tiny", f"--benchmark-json={out}", "--benchmark-max-time=0.05"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout.splitlines()[-1]
    assert "1 xfailed" in done.stdout.splitlines()[-1]
    found = {one["extra_info"]["fix"]: one for one in json.loads(out.read_text())["benchmarks"]}
    assert set(found) == {"query_to_half", "kv_to_query", "full_float32"}
    assert {one["group"] for one in found.values()} == {"attention-decode tiny eager"}
    info = found["query_to_half"]["extra_info"]
    assert info["status"] == "passed"
    assert 0.0 < info["drift"] < 0.01
    assert info["memory"]["allocated_peak_bytes"] > 0
    assert info["paired"]["verdict"] in ("faster", "slower", "equivalent", "undecided")
    assert info["trace"]["backend"]
    summary = done.stdout.split("attention-decode tiny eager: paired with full_float32")[1]
    lines = {line.split()[0]: line for line in summary.splitlines() if line.strip()}
    assert "raised" in lines["as_shipped"]
    assert "Expected query, key, and value to have the same dtype" in lines["as_shipped"]
    assert "baseline" in lines["full_float32"]
    assert any(verdict in lines["kv_to_query"] for verdict in ("faster", "slower", "equivalent", "undecided"))
