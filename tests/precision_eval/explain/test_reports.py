"""The open public reports that are answered from their text: what has to be named, and what would mislead."""

import tomllib
from pathlib import Path

import pytest

from precision_eval.explain import explain

ROOT = Path(__file__).resolve().parents[3]
CASES = tomllib.loads((ROOT / "docs/reports/answers.toml").read_text(encoding="utf-8"))["case"]
OPEN = [case for case in CASES if case.get("tool") == "explain" and case["set"] == "open"]


@pytest.mark.parametrize("case", OPEN, ids=lambda case: case["id"])
@pytest.mark.parametrize("width", [80, 110])
def test_an_open_report_is_answered_in_fifteen_lines(case, width):
    found = explain(case["text"])
    assert found.known == (case["expected_exit"] == "fault")
    answer = found.to_text(width=width)
    assert len(answer.splitlines()) <= 15
    flowing = " ".join(answer.split()).lower()
    assert any(word.lower() in flowing for word in case["must_name"])
    assert [word for word in case["must_not"] if word.lower() in flowing] == []
