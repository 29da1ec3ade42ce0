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


def test_codes_of_a_quantizer_are_not_cured_by_a_cast():
    found = explain("RuntimeError: self and mat2 must have the same dtype, but got Half and Char")
    assert "quantization" in found.to_text(width=110)
    assert "may help: cast" not in found.to_text(width=110)


def test_a_recomputation_in_another_dtype_may_have_two_causes():
    device = "'device': device(type='cpu')"
    saved, text = (
        f"{name} metadata: {{'shape': torch.Size([1, 4]), 'dtype': torch.{dtype}, {device}}}"
        for name, dtype in (("saved", "bfloat16"), ("recomputed", "float32"))
    )
    answer = explain(f"{saved}\n{text}\n").to_text(width=110)
    assert "another autocast" in answer
    assert "outside of the checkpointed part" in answer


def test_autocast_that_is_switched_off_names_no_device_of_its_own():
    text = "UserWarning: In MPS autocast, but the target dtype is not supported. Disabling autocast."
    assert 'torch.autocast("cpu"' not in explain(text).to_text(width=110)
