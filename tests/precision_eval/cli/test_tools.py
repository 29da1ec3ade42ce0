"""explain, plan and doctor from the command line: answers, and bad input as one line with code 2."""

import pytest


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("explain", " "), "the message is empty; give the message in quotes"),
        (("plan", "metavoice-2b"), "no model 'metavoice-2b'; give FILE.py:FACTORY"),
        (("plan", "dia-encode", "--fix", "kv_to_qery"), "did you mean kv_to_query"),
        (("plan", "dia-encode", "--fix", ","), "--fix names nothing; give names or globs"),
        (("plan", "dia-encode", "--fix", "all,nope"), "unknown fix 'nope'"),
        (("plan", "dia-encode", "--device", "t5"), "unknown device 't5'"),
        (("doctor", "dia-decod"), "unknown case 'dia-decod'; did you mean dia-decode"),
        (("doctor", "dia-decode", "--set", "size=huge"), "unknown size of the case 'dia-decode': 'huge'"),
        (("doctor", "hf:./nowhere"), "no folder ./nowhere; give one with config.json and safetensors files"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(refused, tmp_path, arguments, text):
    refused(text, *(argument.format(tmp=tmp_path) for argument in arguments))
