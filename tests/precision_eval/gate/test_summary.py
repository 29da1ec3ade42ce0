"""The summary names what matters first, and the JSON is strict."""

import json
import math
import re

import pytest

from precision_eval.gate import FigureChange, GateCell, GateResult, Margins, markdown, to_json
from precision_eval.gate.summary import verdict_line
from precision_eval.stats.moderated import Prior


def place(fix="kv_to_query"):
    return GateCell("metavoice-decode", fix, "eager", "2048", "cpu")


def made(*changes, **more):
    values = {
        "base": "runs/a",
        "head": "runs/b",
        "base_remarks": {"torch": "2.13.0"},
        "head_remarks": {"torch": "2.14.0"},
        "margins": Margins(),
        "changes": changes,
        "only_base": (),
        "only_head": (),
        "set_aside": (),
        "priors": {},
        "doubts": (),
    }
    return GateResult(**(values | more))


SLOWER = FigureChange(
    place=place(),
    metric="latency_ratio",
    verdict="regression",
    base=1.5,
    head=1.545,
    ratio=1.03,
    low=1.02,
    high=1.04,
    margin=0.01,
    detectable=0.015,
    processes=(5, 5),
)


def test_a_regression_is_a_row_with_its_interval():
    text = markdown(made(SLOWER))
    assert text.startswith("**Regression: 1 figure of 1 cell worse beyond the margin. Not compared: ")
    row = "| `metavoice-decode/kv_to_query/eager@cpu:2048` | latency_ratio | 1.5 | 1.545 |"
    assert f"{row} +3.00 % [+2.00 %, +4.00 %] | 1 % |" in text
    assert text.index("Regressions (1)") < text.index(
        "Margins: latency 1 % (to the anchor 10 %), drift ×1.2, memory 1 %"
    )


def test_nothing_worse_says_what_stays_open():
    open_one = FigureChange(**{**vars(SLOWER), "verdict": "undecided", "detectable": 0.052})
    found = made(open_one, only_base=((place("bfloat16"), "drift"),), set_aside=(((place(), "drift"), "threads"),))
    assert verdict_line(found).startswith(
        "Could not tell: no regression beyond the margins in 1 figure; 1 undecided; 1 missing in head; "
        "1 set aside as unlike; no verdict on latency. Not compared: status, latency, absolute speed"
    )
    text = markdown(found)
    assert "| +5.2 % | 5+5 |" in text
    assert "- `metavoice-decode/bfloat16/eager@cpu:2048`: drift" in text
    assert "- other threads: `metavoice-decode/kv_to_query/eager@cpu:2048`" in text


def test_json_is_strict_and_whole():
    never = FigureChange(**{**vars(SLOWER), "high": math.inf})
    found = json.loads(
        to_json(made(never, priors={"latency_ratio": Prior(math.inf, 0.0001)}, doubts=("a doubt",))),
        parse_constant=pytest.fail,
    )
    assert found["verdict"] == "regression"
    assert found["changes"][0]["cell"] == "metavoice-decode/kv_to_query/eager@cpu:2048"
    assert found["changes"][0]["high"] is None
    assert found["priors"]["latency_ratio"] == {"degrees": None, "spread": pytest.approx(0.01)}
    assert found["doubts"] == ["a doubt"]


HOSTILE = "<img src=x onerror=alert(1)> \x1b]0;title\x07 **b** | [a](javascript:b)"


def test_what_a_record_says_is_text_and_not_markup():
    change = FigureChange(
        place=place(HOSTILE), metric="status", verdict="regression", base="passed", head="raised", note=HOSTILE
    )
    key = (place(HOSTILE), "drift")
    sides = {"base": HOSTILE, "head": HOSTILE, "head_remarks": {"torch": HOSTILE}}
    found = made(change, **sides, only_base=(key,), set_aside=((key, HOSTILE),), doubts=(HOSTILE,), damage=(HOSTILE,))
    text = markdown(found)
    assert "\x1b" not in text
    assert "\x07" not in text
    bare = re.sub(r"`[^`\n]*`|<code>.*?</code>", "", text)  # what is code shows as it is
    assert "<img" not in bare
    bare = re.sub("<summary>.*?</summary>", "", bare)  # no Markdown is read inside an HTML block
    assert not re.search(r"(?<!\\)\]\(", bare)
