"""``precision-eval report`` writes the page too."""

from pathlib import Path

import made_runs as made
import pytest

from precision_eval.cli import main

ROOT = Path(__file__).resolve().parents[4]


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
    assert f"The HTML report, for a browser: {run_dir / 'report.html'}" in capsys.readouterr().out


SWEEP = ROOT / "results/torch-versions"


def test_versions_beside_the_run_are_told_of(run_dir, command):
    (run_dir.parent / "torch-versions").symlink_to(SWEEP)
    assert command("report", run_dir) == 0
    page = (run_dir / "report.html").read_text(encoding="utf-8")
    assert "precision-eval versions --results torch-versions" in page
    assert "What changed at each version" in page


def test_versions_beside_the_run_that_are_damaged_cost_it_no_page(run_dir, command, capsys):
    (run_dir.parent / "torch-versions").mkdir()
    assert command("report", run_dir) == 0
    said = capsys.readouterr().out
    assert "The HTML report goes without torch versions: " in said
    assert "What changed at each version" not in (run_dir / "report.html").read_text(encoding="utf-8")
