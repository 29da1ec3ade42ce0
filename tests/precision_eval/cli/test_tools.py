"""explain, plan and doctor from the command line: answers, and bad input as one line with code 2."""

import pytest


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
        (("doctor",), "doctor was given nothing; give one of"),
        (("doctor", "a:b", "--case", "dia-decode"), "factory and case; give one of"),
        (("doctor", "--case", "dia-decod"), "unknown case 'dia-decod'; did you mean dia-decode"),
        (("doctor", "--case", "dia-decode", "--size", "huge"), "unknown size of the case 'dia-decode': 'huge'"),
        (("doctor", "--hf", "./nowhere"), "no folder ./nowhere; give one with config.json and safetensors files"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(refused, tmp_path, arguments, text):
    refused(text, *(argument.format(tmp=tmp_path) for argument in arguments))


def test_a_plan_warns_of_what_float16_stores(program):
    code, out, _ = program("plan", "--model", "t5-xxl", "--device", "t4", "--fix", "float16")
    assert code == 0
    assert "which the source keeps in float32 because it overflows" in out
