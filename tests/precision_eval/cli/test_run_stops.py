"""A run that cannot write: a folder it may not write to, a full output, said in one line."""

import ctypes
import importlib
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from precision_eval.cli.application import run_application
from precision_eval.cli.commands import app
from precision_eval.cli.run import _print_how_to_resume
from precision_eval.core.errors import RecordError
from precision_eval.core.files import claimed
from precision_eval.core.records import RecordFile
from precision_eval.run.session import _unwritable

ARGUMENTS = [
    *("run", "--case", "attention-decode", "--size", "tiny", "--measure", "trace", "--device", "cpu"),
    *("--fix", "full_float32"),
]


def run(out, **kwargs):
    return subprocess.run(
        [sys.executable, "-m", "precision_eval.cli", *ARGUMENTS, "--out", str(out)],
        text=True,
        check=False,
        timeout=200,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **kwargs},
    )


@pytest.mark.parametrize(
    ("application", "command"),
    [
        ("precision_eval.cli.commands", ["run"]),
        ("precision_eval.cli.commands", ["modules", "imaginairy-time-embed"]),
        ("validation.__main__", ["prove"]),
    ],
)
def test_a_folder_of_somebody_else_is_refused_and_kept(tmp_path, monkeypatch, capsys, application, command):
    files = ["report.md", "results.csv", "m.mkv.partial"]
    for name in files:
        (tmp_path / name).write_text("mine")
    module = importlib.import_module(application)
    app = getattr(module, "app", None) or module.main
    monkeypatch.setattr(sys, "argv", ["program", *command, "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        run_application(app, "program")
    assert ended.value.code == 2
    assert "is not empty and holds no" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files)
    assert all((tmp_path / name).read_text() == "mine" for name in files)


@pytest.mark.parametrize("command", [["run"], ["modules", "imaginairy-time-embed"]])
def test_a_folder_that_another_command_holds_is_left_alone(tmp_path, monkeypatch, capsys, command):
    monkeypatch.setattr(sys, "argv", ["precision-eval", *command, "--out", str(tmp_path)])
    with claimed(tmp_path), pytest.raises(SystemExit) as ended:
        run_application(app, "precision-eval")
    assert ended.value.code == 2
    assert f"another run is under way in {tmp_path}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_reads_as_markup_is_text(tmp_path, capsys):
    records = RecordFile(tmp_path / "[/b][red]" / "records.jsonl")
    _print_how_to_resume(records, Console(width=500))
    assert capsys.readouterr().out.count(str(records.path)) == 1


def obey_permissions() -> None:
    """Give up root's privilege to write anywhere; for others this changes nothing."""
    if os.geteuid() == 0:
        for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
            ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


@pytest.mark.slow
@pytest.mark.skipif(platform.system() != "Linux", reason="root elsewhere cannot give up that privilege")
def test_a_folder_that_may_not_be_written(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(0o555)
    done = run(folder, preexec_fn=obey_permissions)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "Permission denied; what was already recorded" in done.stderr
    assert "correct that and run the same command again" in done.stderr
    assert list(folder.iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")
def test_an_output_that_is_full_costs_no_record(tmp_path):
    with Path("/dev/full").open("w") as full:
        done = run(tmp_path / "run", stdout=full)
    assert done.returncode == 2
    assert "precision-eval: cannot write the output: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert run(tmp_path / "run").returncode == 0


def test_what_cannot_be_written_is_named_with_its_remedy():
    full = _unwritable(OSError(28, "No space left on device", "runs/a/report.md"), Path("runs/a/records.jsonl"))
    assert isinstance(full, RecordError)
    assert str(full) == (
        "cannot write runs/a/report.md: No space left on device; what was already recorded in runs/a/records.jsonl is "
        "intact, free space and run the same command again"
    )
