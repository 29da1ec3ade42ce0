"""``precision-eval report`` writes the page too."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from precision_eval.cli import main

TESTS = Path(__file__).parent.parent
made = SimpleNamespace(**runpy.run_path(str(TESTS / "precision_eval/report/conftest.py")))


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
    assert f"The page, for a browser: {run_dir / 'report.html'}" in capsys.readouterr().out


def test_versions_that_are_not_there_end_in_one_line(run_dir, command, tmp_path, capsys):
    assert command("report", run_dir, "--versions", tmp_path / "nowhere") == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not (run_dir / "report.html").exists()
