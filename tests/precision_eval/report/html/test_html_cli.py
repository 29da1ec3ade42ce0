"""``precision-eval report`` writes the page too."""

import json

import html_reading as reading
import made_runs as made
import made_versions
import pytest


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    run = made.Synthetic(tmp_path_factory.mktemp("report") / "cli")
    run.attention("attention-decode", "metavoice", "eager")
    return run.write()


@pytest.fixture
def versions(run_dir):
    """Results of two torch versions beside the run, or a folder that holds none."""
    return run_dir.parent / "torch-versions"


def test_a_folder_of_versions_that_is_damaged_costs_no_page(run_dir, versions, program):
    versions.mkdir()
    code, out, _ = program("report", run_dir)
    text = (run_dir / "report.html").read_text(encoding="utf-8")
    assert code == 0
    assert 'href="figures/tradeoff-attention-decode-cpu.svg"' in text  # the saved figures are linked
    assert f"HTML report: {run_dir / 'report.html'}" in out
    assert "The HTML report goes without torch versions: " in out
    assert "What changed at each version" not in text


def test_a_script_gets_strict_json_alone_and_the_page_the_versions_beside_the_run(run_dir, versions, program):
    drift, status = (f"eager.attention_decode.track_{metric}" for metric in ("drift", "status"))
    for torch, error, outcome in (("2.8.0", 8e-6, 2), ("2.9.1", 1e-6, 1)):
        values = {drift: {("kv_to_query", "tiny"): error}, status: {("kv_to_query", "tiny"): outcome}}
        made_versions.write_runs(versions, [made_versions.Run(torch=torch, values=values)])
    code, out, _ = program("report", run_dir, "--json")
    answer = json.loads(out)
    assert (code, answer["html_report"]) == (0, str(run_dir / "report.html"))
    assert {fix["fix"] for group in answer["groups"] for fix in group["fixes"]} >= {"as_shipped", "kv_to_query"}
    page = (run_dir / "report.html").read_text(encoding="utf-8")
    (section,) = [node for node in reading.read(page).walk() if node.attrs.get("id") == "versions"]
    for said in ("precision-eval versions --results torch-versions", "1 status turned over", "8.00e-6 → 1.00e-6"):
        assert said in section.text
    (row,) = [node for node in section.walk() if node.tag == "tr" and "kv_to_query" in node.text and "td" in str(node)]
    assert [node.attrs["class"] for node in row.walk() if node.tag == "td"] == ["raised", "passed"]


def test_quiet_prints_the_path_and_goes_with_no_json(run_dir, program, refused):
    assert program("report", run_dir, "--quiet")[:2] == (0, f"{run_dir / 'report.html'}\n")
    refused("--quiet and --json were given; give one of them", "report", run_dir, "--quiet", "--json")
