"""``precision-eval report`` writes the page too."""

import json

import made_runs as made
import made_versions
import pytest

from precision_eval.cli.commands import main


@pytest.fixture
def run_dir(tmp_path):
    run = made.Synthetic(tmp_path / "cli")
    run.attention("attention-decode", "metavoice", "eager")
    return run.write()


@pytest.fixture
def command(monkeypatch):
    """Run a command line; return its exit code."""

    def run(*words):
        monkeypatch.setattr("sys.argv", ["precision-eval", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code or 0

    return run


def test_report_writes_the_page_and_says_where(run_dir, command, capsys):
    assert command("report", run_dir) == 0
    text = (run_dir / "report.html").read_text(encoding="utf-8")
    assert 'href="figures/tradeoff-attention-decode-cpu.svg"' in text  # the saved figures are linked
    assert f"HTML report: {run_dir / 'report.html'}" in capsys.readouterr().out


def test_versions_beside_the_run_are_told_of(run_dir, command):
    drift = "eager.attention_decode.track_drift"
    runs = [
        made_versions.Run(torch=torch, values={drift: {("kv_to_query", "tiny"): 1e-6}}) for torch in ("2.8.0", "2.9.1")
    ]
    made_versions.write_runs(run_dir.parent / "torch-versions", runs)
    assert command("report", run_dir) == 0
    page = (run_dir / "report.html").read_text(encoding="utf-8")
    assert "precision-eval versions --results torch-versions" in page
    assert "What changed at each version" in page


def test_a_script_gets_the_path_or_strict_json_alone(run_dir, command, capsys):
    assert command("report", run_dir, "--quiet") == 0
    assert capsys.readouterr().out == f"{run_dir / 'report.html'}\n"
    assert command("report", run_dir, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["html_report"] == str(run_dir / "report.html")
    assert {fix["fix"] for group in answer["groups"] for fix in group["fixes"]} >= {"as_shipped", "kv_to_query"}
    assert command("report", run_dir, "--quiet", "--json") == 2
    assert "--quiet and --json were given; give one of them" in capsys.readouterr().err


def test_versions_beside_the_run_that_are_damaged_cost_it_no_page(run_dir, command, capsys):
    (run_dir.parent / "torch-versions").mkdir()
    assert command("report", run_dir) == 0
    said = capsys.readouterr().out
    assert "The HTML report goes without torch versions: " in said
    assert "What changed at each version" not in (run_dir / "report.html").read_text(encoding="utf-8")
