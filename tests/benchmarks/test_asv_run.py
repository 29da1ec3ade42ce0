"""asv itself, run for real on a small selection, in a repository of its own."""

import json
import math
import shutil
import subprocess
from pathlib import Path

import pytest
from programs import run_python

ROOT = Path(__file__).resolve().parents[2]
BENCH = r"eager\.imaginairy_time_embed\.(track_status|track_drift|track_latency_to_anchor|time_call)|build"


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository")
    shutil.copytree(ROOT / "benchmarks", folder / "benchmarks", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("asv.conf.json", "asv_uv_env.py"):
        shutil.copy(ROOT / name, folder)
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *command], cwd=folder, check=True)
    asv(folder, "machine", "--yes", "--machine", "here")
    return folder


def asv(folder, *arguments):
    these = {"HOME": str(folder), "ASV_PYTHONPATH": str(ROOT)}  # these files, and not those that are installed
    done = run_python("-m", "asv", *arguments, cwd=folder, **these)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def cells(result, name):
    row = dict(zip(result["result_columns"], result["results"][name], strict=False))
    fixes, sizes = (row["params"] + [["''"], ["''"]])[:2]
    places = [(fix.strip("'"), size.strip("'")) for fix in fixes for size in sizes]
    return dict(zip(places, row["result"], strict=True)), row


def run(repository, pattern, *more):
    selection = ["--python=same", "--set-commit-hash", "HEAD", "--bench", pattern, "--record-samples", *more]
    output = asv(repository, "run", *selection, "--show-stderr")
    (path,) = (repository / ".asv" / "results" / "here").glob("*-existing-*.json")
    return json.loads(path.read_text()), output


@pytest.mark.slow
def test_a_real_run_shows_statuses_failures_and_what_cannot_be(repository):
    result, output = run(repository, BENCH)
    status, _ = cells(result, "eager.imaginairy_time_embed.track_status")
    assert status["as_shipped", "cpu"] == 2
    assert status["full_float32", "cpu"] == 1
    assert math.isnan(status["dynamo_fallback", "cpu"])
    drift, _ = cells(result, "eager.imaginairy_time_embed.track_drift")
    assert drift["as_shipped", "cpu"] is None  # a failure, and not n/a
    assert 0.0 < drift["full_float32", "cpu"] < 1e-4
    assert drift["autocast", "cpu"] > 10 * drift["full_float32", "cpu"]
    times, _ = cells(result, "eager.imaginairy_time_embed.time_call")
    assert times["as_shipped", "cpu"] is None
    assert times["full_float32", "cpu"] > 0.0
    assert math.isnan(times["dynamo_fallback", "cpu"])
    anchor, row = cells(result, "eager.imaginairy_time_embed.track_latency_to_anchor")
    assert anchor["full_float32", "cpu"] > 0.0
    assert any(samples is not None and len(samples) > 1 for samples in row["samples"])  # one per process
    assert "dtype" in output
    assert "dynamo_fallback exists only compiled, not eager" in output


@pytest.mark.slow
def test_a_quick_run_shows_failures_and_gives_no_figures(repository):
    """asv keeps what a quick run finds; tiny sizes must not come to stand as a measurement."""
    fixes = r"\('(as_shipped|full_float32)', .*\)"
    result, output = run(repository, rf"eager\.imaginairy_time_embed\.track_drift{fixes}", "--quick")
    drift, _ = cells(result, "eager.imaginairy_time_embed.track_drift")
    assert drift["as_shipped", "cpu"] is None
    assert math.isnan(drift["full_float32", "cpu"])
    assert "it runs; asv keeps what --quick finds" in output
