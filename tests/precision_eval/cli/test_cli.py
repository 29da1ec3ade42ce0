"""The command line as a user meets it: help, bad input, a small run, Ctrl-C, resumption."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from precision_eval.cli.commands import COMMANDS, command_named

COMMAND = [sys.executable, "-m", "precision_eval.cli"]
HEAVY = ("torch", "numpy", "scipy", "librosa", "matplotlib", "numba")


def test_help_loads_nothing_heavy_and_a_bad_name_ends_before_torch_is_loaded(tmp_path):
    lines = [["--help"], *([name, "--help"] for name in ("run", "list", "gate", "audio", "choose"))]
    code = (
        "import sys\nfrom precision_eval.cli.commands import main\n"
        "def run(arguments):\n"
        "    sys.argv = ['precision-eval', *arguments]\n"
        "    try:\n        main()\n    except SystemExit as end:\n        return end.code or 0\n"
        f"print('CODES', [run(line) for line in {lines!r}])\n"
        f"print('LOADED', [name for name in {HEAVY!r} if name in sys.modules])\n"
        f"print('BAD', run(['run', '--fix', 'nope', '--out', {str(tmp_path)!r}]), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert f"CODES {[0] * len(lines)}" in done.stdout
    assert "LOADED []" in done.stdout
    assert "BAD 2 False" in done.stdout


def test_no_usage_line_shows_a_hidden_argument():
    pieces = {name: command_named(name).make_context(name, [], resilient_parsing=True) for name in COMMANDS}
    usage = {name: context.command.collect_usage_pieces(context) for name, context in pieces.items()}
    assert usage["gate"] == ["[OPTIONS]"]
    assert usage["audio"] == ["[OPTIONS]", "{REF}", "[EST]"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fix", "kv_to_quary"], "unknown fix 'kv_to_quary'; did you mean kv_to_query"),
        (["--case", "attention-decod"], "unknown case 'attention-decod'; did you mean attention-decode"),
        (["--device", "gpu"], "unknown device 'gpu'; did you mean"),
        (["--mode", "eagre"], "unknown mode 'eagre'; did you mean eager"),
        (["--measure", "latancy"], "unknown measure 'latancy'; did you mean latency"),
        (["--size", "tinny"], "unknown size 'tinny'; did you mean tiny"),
        (["--set", "threads=0"], "--set threads"),
        (["--set", "minutes=-1"], "--set minutes"),
        (["--bogus"], "--bogus"),
        (["--set", "checkpoint_dtype=int8"], "int8"),
    ],
)
def test_bad_names_and_options_are_code_2(program, tmp_path, arguments, message):
    code, _, err = program("run", "--out", tmp_path / "run", *arguments)
    assert (code, message in " ".join(err.split())) == (2, True)
    assert not message.startswith("unknown") or len(err.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_damaged_records_are_one_line_and_code_2(program, tmp_path):
    (tmp_path / "records.jsonl").write_text('{"schema_version":7}\n')
    code, _, err = program("run", "--case", "attention-decode", "--size", "tiny", "--out", tmp_path)
    assert (code, len(err.splitlines())) == (2, 1)
    assert "schema version 7, this precision-eval reads 2" in err


@pytest.mark.parametrize(
    ("what", "expected"), [("fixes", "kv_to_query"), ("cases", "attention-decode"), ("measures", "trace")]
)
def test_list(program, what, expected):
    code, out, _ = program("list", what)
    assert (code, expected in out, "source: " in out) == (0, True, True)


def records_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


SMALL = [
    "--case", "attention-decode", "--size", "tiny", "--measure", "latency", "--set", "budget=0.1", "--device", "cpu",
]  # fmt: skip


def test_small_run_and_its_resumption(program, tmp_path):
    out = tmp_path / "run"
    command = ("run", *SMALL, "--fix", "as_shipped,kv_to_query", "--out", out)
    code, text, _ = program(*command)
    found = {record["fix"]: record for record in records_of(out)}
    assert found["as_shipped"]["status"] == "raised"
    assert "Expected query, key, and value to have the same dtype" in found["as_shipped"]["reason"]
    assert found["kv_to_query"]["data"]["baseline"] == "full_float32"
    assert found["kv_to_query"]["environment"] == found["as_shipped"]["environment"]
    assert (code, "kv_to_query" in text) == (0, True)
    before = (out / "records.jsonl").read_bytes()
    with (out / "records.jsonl").open("ab") as file:
        file.write(b'{"torn')
    code, text, _ = program(*command)
    assert f"{len(found)} of {len(found)} already measured" in text
    assert "a torn last line (6 bytes) is dropped" in " ".join(text.split())
    assert (out / "records.jsonl").read_bytes()[: len(before)] == before
    assert len((out / "records.jsonl").read_bytes()) == len(before) + 6  # nothing to append: still to be mended


def test_device_that_is_not_there_is_bad_input(program, tmp_path):
    code, _, err = program("run", *SMALL[:-2], "--device", "cuda:99", "--fix", "kv_to_query", "--out", tmp_path / "run")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("precision-eval: device cuda:99 is not here: torch ")
    assert not (tmp_path / "run").exists()


def test_ctrl_c_keeps_what_was_measured_and_says_how_to_go_on(tmp_path, program):
    out = tmp_path / "run"
    effort = ["--set", "budget=0.3", "--set", "processes=1"]
    arguments = ["--case", "attention-*", *SMALL[2:6], "--fix", "kv_to_query", *effort]
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
    assert program("run", *arguments, "--device", "cpu", "--out", out)[0] == 0
    assert records_of(out)[0] == kept
    assert {record["case"] for record in records_of(out)} == {"attention-decode", "attention-prefill"}
