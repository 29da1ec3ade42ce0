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


def recomputed(before=""):
    device = "'device': device(type='cpu')"
    saved, again = (
        f"{name} metadata: {{'shape': torch.Size([1, 4]), 'dtype': torch.{dtype}, {device}}}"
        for name, dtype in (("saved", "bfloat16"), ("recomputed", "float32"))
    )
    return f"{before}{saved}\n{again}\n"


def test_a_recomputation_in_another_dtype_has_two_causes_and_says_how_to_tell_them():
    answer = " ".join(explain(recomputed()).to_text(width=110).split())
    assert ("FSDP2" in answer, "another autocast" in answer) == (True, True)
    assert answer.count("if: ") == answer.count("- ") == answer.count("fix: ") == 2
    named = explain(recomputed("  File torch/distributed/fsdp/_fully_shard/_fsdp_state.py\n"))
    assert [cause.is_named for cause in named.causes] == [True, False]
    assert "FSDP2" in named.causes[0].title


def test_compiled_values_differ_by_casts_only_where_a_half_format_is_there():
    values = "torch.testing.assert_close(r, g)\nAssertionError: Tensor-likes are not close!\n"
    compiled = 'got = torch.compile(f, backend="inductor")(x)\n'
    for half in ("y.to(torch.bfloat16)\n", "Greatest relative difference: 127.0 (up to 0.016 allowed)\n"):
        assert "EMULATE_PRECISION_CASTS=1" in str(explain(compiled + values + half))
    for text in (values, compiled + values, values + "x.half()\n"):
        assert "EMULATE_PRECISION_CASTS" not in str(explain(text))
        assert "float64" in str(explain(text))


def test_autocast_that_is_switched_off_names_no_device_of_its_own():
    text = "UserWarning: In MPS autocast, but the target dtype is not supported. Disabling autocast."
    assert 'torch.autocast("cpu"' not in explain(text).to_text(width=110)
