"""``precision-eval report`` writes the page too."""

import json

import made_runs as made
import pytest


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    run = made.Synthetic(tmp_path_factory.mktemp("report") / "cli")
    run.attention("attention-decode", "metavoice", "eager")
    return run.write()


def test_a_script_gets_strict_json_alone(run_dir, program):
    code, out, _ = program("report", run_dir, "--json")
    answer = json.loads(out)
    assert (code, answer["html_report"]) == (0, str(run_dir / "report.html"))
    assert {fix["fix"] for group in answer["groups"] for fix in group["fixes"]} >= {"as_shipped", "kv_to_query"}


def test_quiet_prints_the_path_and_goes_with_no_json(run_dir, program, refused):
    assert program("report", run_dir, "--quiet")[:2] == (0, f"{run_dir / 'report.html'}\n")
    refused("--quiet and --json were given; give one of them", "report", run_dir, "--quiet", "--json")
