"""choose from the command line: the answer first, exit codes, one screen, strict JSON, commands that exist."""

import json
import shlex

import made_groups as made
import pytest
from programs import printed_by

from precision_eval.cli.choose import HELP
from precision_eval.cli.commands import command_named
from precision_eval.core.records import RecordFile

SCREEN_LINES = 24


def measured(fix, ratio, drift, memory, **rest):
    """Records of one fix that runs: four processes around a ratio."""
    ratios = [ratio * process for process in (0.999, 1.001, 0.9995, 1.0005)]
    return [
        made.record(fix, "latency", made.latency(ratios), **rest),
        made.record(fix, "drift", {"relative_error": drift}, **rest),
        made.record(fix, "memory", {"storage_bytes": memory, "allocated_peak_bytes": 0}, **rest),
    ]


def group(*, half=0.5, **rest):
    """Exact float32 in 64 bytes, float16 in half the time and bytes, and the control, which raises."""
    raised = made.record("as_shipped", "latency", status="raised", reason="Expected query", **rest)
    return [*measured("full_float32", 1.0, 1e-6, 64, **rest), *measured("float16", half, 1e-3, 32, **rest), raised]


@pytest.fixture
def run_dir(tmp_path):
    """Eager, where everything was measured, and compiled, where no drift was."""
    compiled = [one for one in group(mode="compiled") if one.measure != "drift"]
    RecordFile(tmp_path / "records.jsonl").append([*group(), *compiled])
    return tmp_path


@pytest.fixture
def choose(run_dir, monkeypatch, program):
    monkeypatch.setenv("COLUMNS", "120")
    return lambda *arguments, folder=run_dir: program("choose", folder, *arguments)


EAGER = ("--mode", "eager")


@pytest.mark.parametrize(
    ("arguments", "code", "first"),
    [
        (("--policy", "quality"), 0, "Take full_float32: smallest drift."),
        (("--policy", "speed"), 0, "Take float16: "),
        (("--max-memory", "40B", "--policy", "quality"), 0, "Take float16: "),
        (("--max-drift", "1e-9"), 1, "No fix keeps --max-drift 1e-09: nearest is full_float32 (drift 1.0e-6"),
    ],
)
def test_the_first_line_is_the_answer_and_the_code_says_whether_there_is_one(choose, arguments, code, first):
    found, out, _ = choose(*EAGER, *arguments)
    assert (found, out[: len(first)]) == (code, first)
    assert 0 < len(out.splitlines()) <= SCREEN_LINES


def test_a_failed_a_a_check_gives_no_answer_by_time_and_code_4(choose, tmp_path):
    noisy = made.record("full_float32", "latency", made.latency([1.2, 1.21, 1.22, 1.2]))
    RecordFile(tmp_path / "noisy" / "records.jsonl").append([*group(), noisy])
    code, out, _ = choose("--policy", "speed", folder=tmp_path / "noisy")
    assert (code, out.partition(":")[0]) == (4, "Could not tell")
    code, out, _ = choose("--policy", "quality", folder=tmp_path / "noisy")
    assert (code, out.partition(":")[0]) == (0, "Take full_float32")


def test_several_groups_are_one_answer(choose, run_dir):
    RecordFile(run_dir / "records.jsonl").append(group(half=2.0, case="attention-prefill"))
    code, out, _ = choose("--policy", "speed")
    assert code == 0
    assert out.count("least time") == 3


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--max-memory", "5"), "--max-memory '5' is no size"),
        (("--max-drift", "-1"), "max_drift is -1.0; expected a finite number above 0"),
        (("--case", "attention-decod"), "unknown case 'attention-decod'; did you mean attention-decode"),
        (("--size", "huge"), "unknown size 'huge'"),
        (("--set", "device=cuda"), "the run holds nothing of device 'cuda', only cpu"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(refused, run_dir, arguments, text):
    refused(text, "choose", run_dir, *EAGER, *arguments)


def test_a_folder_without_records_says_so(refused, tmp_path):
    refused("records.jsonl does not exist; measure first", "choose", tmp_path)
    (tmp_path / "records.jsonl").touch()
    refused("holds no record; measure first", "choose", tmp_path)


def test_json_is_strict_and_holds_the_answer(choose):
    code, out, _ = choose(*EAGER, "--json", "--policy", "speed")
    found = json.loads(out, parse_constant=pytest.fail)
    assert (code, found["found"], found["policy"]) == (0, True, "speed")
    (choice,) = found["choices"]
    assert (choice["outcome"], choice["tied"]) == ("one", ["float16"])
    assert {one["fix"] for one in choice["fixes"]} >= {"as_shipped", "full_float32"}


def test_the_command_in_a_message_parses(choose):
    code, _, err = choose("--mode", "compiled", "--policy", "quality")
    assert (code, "the choice needs the measure 'drift', which no fix has here" in err) == (2, True)
    program, name, *arguments = shlex.split(err.strip().rpartition("add it: ")[2])
    assert (program, name) == ("precision-eval", "run")
    assert command_named(name).make_context(name, arguments).params["measure"] in (
        ["drift"],
        ("drift",),
    )  # a tuple under older Click


def test_records_that_cannot_be_compared_are_named_with_the_answer(choose, run_dir):
    other = group(case="attention-prefill")
    RecordFile(run_dir / "records.jsonl").append(other)
    unlike = made.record("kv_to_query", "drift", {"relative_error": 1.0}, case="attention-prefill", case_digest="other")
    RecordFile(run_dir / "records.jsonl").append([unlike])
    code, out, _ = choose(*EAGER, "--json")
    found = json.loads(out)
    assert (code, found["found"], len(found["choices"])) == (4, False, 1)
    assert "unlike case digests" in found["unanswered"][0]["lacks"]
    code, _, err = choose(*EAGER, "--case", "attention-prefill")
    assert (code, err.count("\n")) == (2, 1)


def test_choosing_loads_no_torch(run_dir):
    code = (
        "import sys, precision_eval.cli.commands\n"
        "assert not {'numpy', 'torch'} & set(sys.modules)\n"
        "from precision_eval.cli.commands import main\n"
        f"sys.argv = ['precision-eval', 'choose', {str(run_dir)!r}, '--mode', 'eager']\n"
        "try:\n    main()\nexcept SystemExit as ended:\n    assert not ended.code, ended.code\n"
        "assert not {'torch', 'matplotlib'} & set(sys.modules)\n"
    )
    printed_by("-c", code)


def test_the_examples_of_the_help_parse():
    lines = [line for line in HELP.splitlines() if line.startswith("[cyan]precision-eval")]
    assert len(lines) == 4
    for line in lines:
        _, name, *arguments = shlex.split(line.split("[/cyan]")[0].removeprefix("[cyan]"))
        assert command_named(name).make_context(name, arguments).params
