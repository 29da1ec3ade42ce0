"""The summary names what matters first, and the JSON is strict."""

import json
import math
import re

import pytest

from precision_eval.gate import FigureChange, GateCell, GateResult, Margins, to_json, to_text


def place(fix="kv_to_query"):
    return GateCell("metavoice-decode", fix, "eager", "2048", "cpu")


def made(*changes, **more):
    values = {"base": "main", "head": "HEAD", "machine": {"torch": "2.13.0"}, "margins": Margins(), "changes": changes}
    return GateResult(**(values | more))


def change(verdict="regression", **more):
    figures = {"base": 1.5e-3, "head": 1.545e-3, "ratio": 1.03, "low": 1.02, "high": 1.04}
    values = {"place": place(), "metric": "latency", "verdict": verdict, "margin": 0.005, "detectable": 0.015}
    return FigureChange(**(values | figures | more))


PAGE = """\
**Regression: 1 figure of 1 cell worse beyond the margin. Not compared: status, drift, memory**

|  |  |
|---|---|
| base | `main` |
| head | `HEAD` |
| torch | 2.13.0 |

### Regressions (1)

| cell | metric | base | head | change | margin | would find | note |
|---|---|---|---|---|---|---|---|
| `metavoice-decode/kv_to_query/eager@cpu:2048` | latency | 1.5 ms | 1.54 ms | +3.00 % [+2.00 %, +4.00 %] | 0.5 % | 1.5 % |  |

Doubts:
- a doubt

Margins: latency 0.5 % (cleared below 1 %), drift ×1.1, memory 1 %. """  # noqa: E501


def test_a_page():
    assert to_text(made(change(), doubts=("a doubt",)), folded=True).startswith(PAGE)


def test_only_a_page_for_a_browser_is_folded():
    result = made(change(), change("no worse", place=place("a")))
    assert to_text(result, folded=True).count("<details>") == 1
    assert "<" not in to_text(result, folded=False)


STATUS = {"metric": "status", "ratio": None, "low": None, "high": None}


def test_json_is_strict_and_whole():
    content = json.loads(to_json(made(change(high=math.inf), doubts=("a doubt",))), parse_constant=pytest.fail)
    assert (content["verdict"], content["doubts"]) == ("regression", ["a doubt"])
    assert content["changes"][0]["cell"] == "metavoice-decode/kv_to_query/eager@cpu:2048"
    assert content["changes"][0]["high"] is None


HOSTILE = "<img src=x onerror=alert(1)> \x1b]0;title\x07 **b** | [a](javascript:b)"


@pytest.mark.parametrize("folded", [True, False])
def test_what_a_model_says_is_text_and_not_markup(folded):
    hostile = change(place=place(HOSTILE), note=HOSTILE, **STATUS)
    result = made(hostile, base=HOSTILE, head=HOSTILE, machine={"torch": HOSTILE}, doubts=(HOSTILE,))
    text = to_text(result, folded=folded)
    assert not set(text) & {"\x1b", "\x07"}
    bare = re.sub(r"`[^`\n]*`|<code>.*?</code>", "", text)  # what is code shows as it is
    assert "<img" not in bare
    assert not re.search(r"(?<!\\)\]\(", bare)
