"""The command line as a user meets it: help, bad input, a small run, Ctrl-C, resumption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "precision_eval.cli"]
HEAVY = ("torch", "numpy", "scipy", "librosa", "matplotlib", "numba")


def run(*arguments, check=False, cwd=None):
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=check, timeout=240, cwd=cwd
    )


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["list", "--help"], ["gate", "--help"]])
def test_help_loads_nothing_heavy(arguments):
    code = (
        "import sys\nfrom precision_eval.cli import main\n"
        f"sys.argv = ['precision-eval', *{arguments!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        f"print('LOADED', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "LOADED []" in done.stdout
    assert "precision-eval" in done.stdout


def test_a_bad_name_ends_before_torch_is_loaded(tmp_path):
    code = (
        "import sys\nfrom precision_eval.cli import main\n"
        f"sys.argv = ['precision-eval', 'run', '--fix', 'nope', '--out', {str(tmp_path)!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    print('CODE', end.code)\n"
        "print('LOADED', 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "CODE 2" in done.stdout
    assert "LOADED False" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fix", "kv_to_quary"], "unknown fix 'kv_to_quary'; did you mean kv_to_query"),
        (["--case", "attention-decod"], "unknown case 'attention-decod'; did you mean attention-decode"),
        (["--device", "gpu"], "unknown device 'gpu'; did you mean"),
        (["--mode", "eagre"], "unknown mode 'eagre'; did you mean eager"),
        (["--measure", "latancy"], "unknown measure 'latancy'; did you mean latency"),
        (["--size", "tinny"], "unknown size 'tinny'; did you mean tiny"),
    ],
)
def test_bad_names_are_one_line_and_code_2(tmp_path, arguments, message):
    done = run("run", "--out", tmp_path / "run", *arguments)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "arguments", [["--threads", "0"], ["--minutes", "-1"], ["--bogus"], ["--checkpoint-dtype", "int8"]]
)
def test_bad_options_are_code_2(arguments):
    assert run("run", *arguments).returncode == 2


def test_damaged_records_are_one_line_and_code_2(tmp_path):
    (tmp_path / "records.jsonl").write_text('{"schema_version":7}\n')
    done = run("run", "--case", "attention-decode", "--size", "tiny", "--out", tmp_path)
    assert done.returncode == 2
    assert "schema version 7, this precision-eval reads 1 and 2" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_report_without_a_run(tmp_path):
    done = run("report", tmp_path)
    assert done.returncode == 2
    assert "holds no records.jsonl" in done.stderr


@pytest.mark.parametrize("what", ["fixes", "cases", "measures"])
def test_list(what):
    shown = run("list", what, check=True).stdout
    expected = {"fixes": "kv_to_query", "cases": "attention-decode", "measures": "trace"}[what]
    assert expected in shown
    assert "source: " in shown


def records_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


SMALL = [
    "--case",
    "attention-decode",
    "--size",
    "tiny",
    "--measure",
    "latency",
    "--budget",
    "0.1",
    "--device",
    "cpu",
]


def test_small_run_and_its_resumption(tmp_path):
    out = tmp_path / "run"
    first = run("run", *SMALL, "--fix", "as_shipped,kv_to_query", "--out", out, check=True)
    found = {record["fix"]: record for record in records_of(out)}
    assert found["as_shipped"]["status"] == "raised"
    assert "Expected query, key, and value to have the same dtype" in found["as_shipped"]["reason"]
    assert found["kv_to_query"]["data"]["baseline"] == "full_float32"
    assert found["kv_to_query"]["environment"] == found["as_shipped"]["environment"]
    assert "kv_to_query" in first.stdout
    before = (out / "records.jsonl").read_bytes()
    with (out / "records.jsonl").open("ab") as file:
        file.write(b'{"torn')
    again = run("run", *SMALL, "--fix", "as_shipped,kv_to_query", "--out", out, check=True)
    assert f"{len(found)} of {len(found)} already measured" in again.stdout
    assert "a torn last line (6 bytes) is dropped" in " ".join(again.stdout.split())
    assert (out / "records.jsonl").read_bytes()[: len(before)] == before
    assert len((out / "records.jsonl").read_bytes()) == len(before) + 6  # nothing to append: still to be mended


@pytest.mark.slow
def test_device_that_is_not_there_is_bad_input(tmp_path):
    done = run("run", *SMALL[:-2], "--device", "cuda:99", "--fix", "kv_to_query", "--out", tmp_path / "run")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "device cuda:99 is not here" in done.stderr
    assert not list((tmp_path / "run").iterdir())


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_measured_and_says_how_to_go_on(tmp_path):
    out = tmp_path / "run"
    arguments = [
        "--case",
        "attention-*",
        "--size",
        "tiny",
        "--measure",
        "latency",
        "--budget",
        "4",
        "--processes",
        "3",  # so that the second cell lasts
        "--fix",
        "kv_to_query",
    ]
    process = subprocess.Popen(
        [*COMMAND, "run", *arguments, "--device", "cpu", "--out", str(out)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background shell has it ignored
    )
    deadline = time.monotonic() + 200
    while not (out / "records.jsonl").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)  # as the terminal does: to the whole foreground group
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 130
    assert "Stopped. 1 records are kept" in output
    assert "precision-eval run --case 'attention-*' --size tiny" in output
    (kept,) = records_of(out)
    run("run", *arguments, "--device", "cpu", "--out", out, check=True)
    assert records_of(out)[0] == kept
    assert {record["case"] for record in records_of(out)} == {"attention-decode", "attention-prefill"}
