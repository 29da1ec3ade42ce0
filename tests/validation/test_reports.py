"""Verdicts on answers to public reports: the rule, the reader who overrules it, and the mended twin."""

import pytest

from validation import reports

LINE = {"key": "02", "tool": "doctor", "exit": 1, "expected": "fault", "named": ["rotate("], "wrong": []}


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "right"),
        ({"exit": 0}, "partly"),  # named, but called no fault
        ({"named": []}, "missed"),
        ({"wrong": ["No fault"]}, "wrong"),
        ({"tool": "explain", "exit": 4, "expected": "no fault"}, "right"),
    ],
)
def test_a_verdict_follows_from_the_exit_code_and_the_words(changes, verdict):
    assert reports.verdict_of(LINE | changes, {}) == verdict


def test_who_has_read_the_answer_overrules_the_rule():
    assert reports.verdict_of(LINE, {"02": {"verdict": "wrong", "remark": "another line"}}) == "wrong"


def test_a_twin_is_the_file_with_the_cure_of_its_thread(tmp_path):
    case = next(case for case in reports.read_cases() if case["id"] == "02")
    command, text = reports._command(case, tmp_path, is_twin=True)
    assert (command[0], text) == ("doctor", None)
    ((old, new),) = case["fix"]
    written = (tmp_path / "02_gptj_static_cache.py").read_text(encoding="utf-8")
    assert new in written
    assert old not in written.replace(new, "")


def test_figures_count_each_half_and_the_twins(tmp_path, monkeypatch):
    monkeypatch.setattr(reports, "FOLDER", tmp_path)  # without verdicts of a reader
    lines = [
        LINE | {"set": "held", "twin": False, "seconds": 3.0},
        LINE | {"set": "held", "twin": False, "seconds": 30.0, "named": []},
        LINE | {"set": "held", "twin": True, "seconds": 3.0, "exit": 0},
    ]
    found = {figure.name: figure.found.partition(" %")[0] for figure in reports._figures([*lines])}
    assert found["first draw, held: right"] == "50.0"
    assert found["mended files called faulty"] == "0.0"


@pytest.mark.parametrize(
    "case", [case for case in reports.read_cases() if " " in case["set"]], ids=lambda case: case["id"]
)
def test_a_case_of_a_later_draw_is_whole(case):
    assert case["source"].startswith("https://github.com/")
    assert case["id"] in reports.read_verdicts()
    assert ("file" in case) != ("text" in case)
    text = (reports.folder_of(case["set"]) / case["file"]).read_text(encoding="utf-8") if "file" in case else ""
    for old, new in case.get("fix", ()):
        assert text.count(old) == 1
        text = text.replace(old, new)
    compile(text, case["id"], "exec")
