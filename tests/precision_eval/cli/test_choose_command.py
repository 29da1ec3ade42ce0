"""choose from the command line: the answer first, exit codes, one screen, strict JSON, commands that exist."""

import json
import shlex
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
import typer
from rich.console import Console

import precision_eval.cli.app_choose
from precision_eval.cli import main
from precision_eval.cli.choose import ChooseRequest, choose_command
from precision_eval.cli.commands import app
from precision_eval.core.records import RecordFile

RESULTS = Path(__file__).resolve().parents[3] / "results"
CPU, SYSTEMS = RESULTS / "cpu", RESULTS / "systems"
VOICE = ("--case", "voice", "--mode", "eager")
SCREEN_LINES = 24


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["precision-eval", "choose", *map(str, arguments)])
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as ended:
        main()
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def test_the_first_line_is_the_answer(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, CPU, *VOICE, "--policy", "quality")
    assert code == 0
    assert out.splitlines()[0].startswith("Take full_float32: smallest drift, 3.1e-7")


def test_limits_change_the_answer(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, CPU, *VOICE, "--max-memory", "10MiB", "--max-drift", "1e-3")
    assert (code, out.split(maxsplit=2)[1]) == (0, "float16:")


def test_no_fix_is_exit_code_1_and_names_what_binds(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, CPU, *VOICE, "--max-drift", "1e-9")
    assert code == 1
    assert out.startswith("No fix keeps --max-drift 1e-09: nearest is full_float32 (drift 3.1e-7")
    assert "beyond --max-drift by a factor 3" in out


def test_several_groups_are_one_answer(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, SYSTEMS)
    assert code == 0
    assert out.startswith("No one fix is the answer everywhere: of 13 cases, full_float32 in ")
    assert "not measured enough to choose: 13 groups" in out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((CPU, "--max-memory", "5"), "--max-memory '5' is no size"),
        ((CPU, "--max-drift", "-1"), "max_drift is -1.0; expected a finite number above 0"),
        ((CPU, "--case", "voices"), "unknown case 'voices'; did you mean voice"),
        ((CPU, "--size", "huge"), "unknown size 'huge'"),
        ((CPU, "--device", "cuda"), "the run holds nothing of device 'cuda', only cpu"),
        ((RESULTS,), "holds no records.jsonl"),
        ((CPU, "--case", "attention-decode", "--length", "64", "--sweep", CPU), "precision-eval sweep --out"),
        ((CPU, "--plan", CPU / "environment.json"), "is no plan; write one: precision-eval plan --json"),
        ((SYSTEMS, "--mode", "compiled"), "the choice needs the measure 'drift', which no fix has here"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(monkeypatch, capsys, arguments, text):
    code, out, err = run(monkeypatch, capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert text in err


def test_an_empty_run_says_so(monkeypatch, capsys, tmp_path):
    (tmp_path / "records.jsonl").write_text("", encoding="utf-8")
    code, _, err = run(monkeypatch, capsys, tmp_path)
    assert code == 2
    assert "holds no record; measure first" in err


def test_json_is_strict_and_holds_the_answer(monkeypatch, capsys):
    def refuse(name):
        raise AssertionError(name)

    code, out, _ = run(monkeypatch, capsys, CPU, *VOICE, "--json", "--policy", "speed")
    found = json.loads(out, parse_constant=refuse)
    assert (code, found["found"], found["policy"]) == (0, True, "speed")
    (choice,) = found["choices"]
    assert choice["tied"] == ["full_float32", "kv_to_query"]
    assert choice["outcome"] == "tie"
    assert {one["fix"] for one in choice["fixes"]} >= {"as_shipped", "full_float32"}


def test_the_command_in_a_message_parses(monkeypatch, capsys):
    _, _, err = run(monkeypatch, capsys, SYSTEMS, "--case", "dia-decode", "--mode", "compiled")
    command = err.strip().rpartition("add it: ")[2]
    program, name, *arguments = shlex.split(command)
    assert (program, name) == ("precision-eval", "run")
    assert typer.main.get_command(app).commands[name].make_context(name, arguments).params["measure"] == ["drift"]


def test_every_answer_fits_one_screen():
    from precision_eval.core.records import RecordFile
    from precision_eval.results.choose import POLICIES, groups_of

    for folder in (CPU, SYSTEMS):
        answers = 0
        requests = [ChooseRequest(run_dir=folder, policy=policy) for policy in POLICIES]
        for group in groups_of(RecordFile(folder / "records.jsonl").read().records):
            place = {"cases": (group.case,), "sizes": (group.size,), "modes": (group.mode,)}
            requests.append(ChooseRequest(run_dir=folder, policy="speed", max_drift=1e-3, **place))
        for request in requests[:9]:
            shown = StringIO()
            try:
                choose_command(request, console=Console(file=shown, width=120))
            except typer.Exit:
                pass
            except LookupError:  # what it lacks is told in one line
                continue
            answers += 1
            assert 0 < len(shown.getvalue().splitlines()) <= SCREEN_LINES, shown.getvalue()
        assert answers > 0, folder


def test_records_that_cannot_be_compared_are_told_beside_the_answer(monkeypatch, capsys, tmp_path):
    lines = [record.to_json() for record in RecordFile(CPU / "records.jsonl").read().records]
    old = next(one for one in map(json.loads, lines) if one["case"] == "voice" and one["measure"] == "latency")
    lines.append(json.dumps(old | {"case_digest": "another"}))
    (tmp_path / "records.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    code, out, _ = run(monkeypatch, capsys, tmp_path, "--case", "attention-*", "--mode", "eager")
    assert code == 0
    code, out, _ = run(monkeypatch, capsys, tmp_path, "--mode", "eager", "--json")
    found = json.loads(out)
    assert (code, found["found"]) == (4, False)
    assert found["choices"]
    assert "unlike case digests" in found["unanswered"][0]["lacks"]
    code, out, _ = run(monkeypatch, capsys, tmp_path, "--mode", "eager")
    assert "add it: precision-eval run --case voice --size default --mode eager" in " ".join(out.split())
    code, _, err = run(monkeypatch, capsys, tmp_path, *VOICE)
    assert (code, err.count("\n")) == (2, 1)


def test_the_help_says_what_each_pin_leaves_out():
    options = {one.name: one.help for one in typer.main.get_command(app).commands["run"].params}
    assert all("measures of the voice alone are left out" in options[name] for name in ("sdpa_backend", "tf32"))


def test_a_narrow_console_cuts_no_name_and_no_time():
    shown = StringIO()
    request = ChooseRequest(run_dir=CPU, cases=("voice",), modes=("eager",), max_drift=1e-3, max_memory="17MiB")
    choose_command(request, console=Console(file=shown, width=80))
    text = shown.getvalue()
    assert "…" not in text
    assert all(part in text for part in ("query_to_half", "1.233 [1.219, 1.248]", "full_float32    over:", "dominated"))
    assert len(text.splitlines()) <= 30


def test_neither_help_nor_choosing_loads_torch():
    code = (
        "import sys, precision_eval.cli.app_choose\n"
        "assert not {'numpy', 'torch'} & set(sys.modules)\n"
        "from precision_eval.cli import main\n"
        f"sys.argv = ['precision-eval', 'choose', {str(CPU)!r}, '--case', 'voice']\n"
        "try:\n    main()\nexcept SystemExit as ended:\n    assert not ended.code, ended.code\n"
        "assert not {'torch', 'matplotlib'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


def test_the_examples_of_the_help_parse():
    text = precision_eval.cli.app_choose._CHOOSE_HELP
    commands = [line.split("[/cyan]")[0][len("[cyan]") :] for line in text.splitlines() if line.startswith("[cyan]")]
    assert len(commands) == 4
    for line in commands:
        _, name, *arguments = shlex.split(line)
        assert typer.main.get_command(app).commands[name].make_context(name, arguments).params
