"""explain, plan, sweep and expect from the command line: answers, and bad input as one line with exit code 2."""

import json
import sys

import pytest

from precision_eval.cli.commands import main


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["precision-eval", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("explain", " "), "the message is empty; give the message in quotes"),
        (("plan", "--model", "metavoice-2b"), "unknown model 'metavoice-2b'"),
        (("plan", "--fix", "kv_to_qery"), "did you mean kv_to_query"),
        (("plan", "--fix", ","), "--fix names nothing; give names or globs"),
        (("plan", "--fix", "all,nope"), "unknown fix 'nope'"),
        (("plan", "--device-memory", "lots"), "lots"),
        (("plan", "--device", "t5"), "unknown device 't5'"),
        (("sweep", "--length", "64,many"), "--length: many is no whole number above 0"),
        (("sweep", "--shape", "bark", "--out", "{tmp}"), "unknown shape 'bark'"),
        (("expect", "--case", "nothing-*"), "unknown case 'nothing-*'"),
        (("expect", "--changes", "--record"), "--changes runs nothing and --record needs a run"),
        (("expect", "--changes", "--table", "{tmp}"), "is no file; give a table"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(monkeypatch, capsys, tmp_path, arguments, text):
    code, _, err = run(monkeypatch, capsys, *(argument.format(tmp=tmp_path) for argument in arguments))
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("precision-eval: ")
    assert text in err


def test_explain_knows_and_does_not_know(monkeypatch, capsys):
    message = "mat1 and mat2 must have the same dtype, but got Float and Half"
    code, out, _ = run(monkeypatch, capsys, "explain", message, "--json")
    assert (code, json.loads(out)["known"]) == (0, True)
    code, out, _ = run(monkeypatch, capsys, "explain", "CUDA out of memory")
    assert code == 4
    assert out.startswith("Not a member of this family")


def test_a_plan_warns_of_what_float16_stores(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "plan", "--model", "t5-xxl", "--device", "t4")
    assert code == 0
    assert "which the source keeps in float32 because it overflows" in out
