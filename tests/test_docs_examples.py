"""The worked examples of docs/ run block by block, print what they show, and say what is so."""

import warnings
from pathlib import Path

import pytest

from tools import docs_examples as examples

TESTS = Path(__file__).resolve().parent
DOCS = TESTS.parent / "docs"
PAGES = sorted([*DOCS.glob("example-*.md"), *DOCS.glob("story-*.md")])


def holds_own_attention(space):
    first, costs = space["diagnosis"].first_split, space["costs"]
    assert (first.kind, first.module) == ("downcast", "")
    cures = {remedy.fix for remedy in space["diagnosis"].remedies if remedy.cures}
    changes = {"suggested change", "stored otherwise"}
    assert cures == changes | {"full_float32", "kv_to_query", "query_to_half", "float16", "bfloat16"}
    assert all(patch.verified for patch in space["diagnosis"].patches)
    assert costs["as shipped"].status == "raised"
    assert {row.status for name, row in costs.items() if name != "as shipped"} == {"passed"}
    assert costs["my edit"].drift == costs["kv_to_query"].drift
    assert costs["full_float32"].drift < 1e-5 > costs["kv_to_query"].drift
    assert 1e-4 < costs["query_to_half"].drift < costs["bfloat16"].drift / 4
    assert costs["my edit"].latency.blocks == costs["bfloat16"].latency.blocks > 1
    assert costs["query_to_half"].stored_bytes < 2.5 * 2**20 < costs["full_float32"].stored_bytes


def holds_transformers_tts(space):
    first, costs = space["diagnosis"].first_split, space["costs"]
    assert (first.kind, first.op) == ("promotion", "cat")
    assert first.module == "speecht5.decoder.prenet"
    assert first.place.line == space["diagnosis"].raised.place.line - 1
    assert {one.fix for one in space["diagnosis"].remedies if one.status == "raised"} == {"kv_to_query", "autocast"}
    assert costs["cast at the call"].drift == pytest.approx(costs["query_to_half"].drift, rel=0.5)
    assert costs["full_float32"].drift < costs["query_to_half"].drift < costs["bfloat16"].drift


def holds_kv_cache(space):
    costs, wide = space["costs"], space["wide"]
    assert 4 < costs["bfloat16 cache"].drift / costs["float16 cache"].drift < 16
    assert costs["float32 cache"].drift < 1e-5
    assert {name: row.status for name, row in wide.items()} == {
        "float32 cache": "passed",
        "float16 cache": "non_finite",
        "bfloat16 cache": "passed",
    }
    assert wide["bfloat16 cache"].drift == pytest.approx(costs["bfloat16 cache"].drift, rel=1e-3)


def holds_long_recordings(space):
    assert space["result"].headline.startswith("no fault found")
    assert space["result"].ratio_to_null["snr_db"] < 1.0
    assert space["found"].fine_lag_s == pytest.approx(0.01, abs=1e-6)
    assert {flag.kind for flag in space["moved"].flags} == {"aligned"}
    assert not space["alone"].failed


def holds_mask(space):
    assert space["diagnosis"].raised.op == "scaled_dot_product_attention"
    assert space["diagnosis"].patch.verified
    assert {name for name, row in space["costs"].items() if row.status == "raised"} == {"float16"}
    assert space["costs"]["kv_to_query"].drift < 1e-5 < space["costs"]["autocast"].drift


def holds_silence(space):
    assert space["diagnosis"].status == "non_finite"
    assert space["patched"].cures
    assert {name for name, row in space["costs"].items() if row.status == "passed"} >= {"full_float32", "bfloat16"}
    assert space["patched"].relative_error < space["costs"]["bfloat16"].drift / 4


def holds_frozen_weights(space):
    assert [finding.kind for finding in space["diagnosis"].faults] == ["drift"]
    assert space["diagnosis"].patch.verified
    lost = {name: row.drift for name, row in space["costs"].items()}
    assert lost["full_float32"] < 1e-5 < lost["float16"] < lost["bfloat16"]


HOLDS = {
    "story-mask": holds_mask,
    "story-silence": holds_silence,
    "story-frozen-weights": holds_frozen_weights,
    "example-long-recordings": holds_long_recordings,
    "example-own-attention": holds_own_attention,
    "example-transformers-tts": holds_transformers_tts,
    "example-kv-cache": holds_kv_cache,
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_prints_what_it_shows(page, monkeypatch):
    monkeypatch.chdir(TESTS.parent)
    space = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the library's own parts, when they are imported
        printed = examples.run(page, space)
    blocks = examples.blocks_of(page.read_text(encoding="utf-8"))
    found = [examples.difference(block, output) for block, output in zip(blocks, printed, strict=True)]
    assert "\n".join(filter(None, found)) == ""
    HOLDS[page.stem](space)


PAGE = """# A page

```python
a = 2
print("two:", a)
```

<!-- two:begin -->
```text
two: 2
```
<!-- two:end -->

Between.

```python
print(f"measured {1 / a:.2f} at page.md:{17} …")
print("doubt: a loaded machine")
```

<!-- half:begin -->
```text
measured 0.70 at page.md:3 …
```
<!-- half:end -->
"""


def ran(tmp_path, text):
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    return page, examples.run(page)


def test_a_page_by_hand(tmp_path):
    page, printed = ran(tmp_path, PAGE)
    one, two = examples.blocks_of(PAGE)
    assert (one.line, one.name, one.shown, two.line) == (4, "two", "two: 2", 17)
    assert printed == ["two: 2", "measured 0.50 at page.md:17 …"]
    assert [examples.difference(*pair) for pair in zip((one, two), printed, strict=True)] == ["", ""]
    assert examples.main([str(page)]) == 0
    assert page.read_text(encoding="utf-8") == PAGE.replace("0.70 at page.md:3", "0.50 at page.md:17")


def test_lines_are_those_of_the_page(tmp_path):
    text = "text\n\n```python\ndef fails():\n    return 1 / 0\n```\n\nmore\n\n```python\nfails()\n```\n"
    with pytest.raises(ZeroDivisionError) as raised:
        ran(tmp_path, text)
    lines = [(entry.lineno + 1, str(entry.statement).strip()) for entry in raised.traceback[-2:]]
    assert lines == [(11, "fails()"), (5, "return 1 / 0")]


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("3 of 4 at 1.5e-3", "3 of 4 at 2.25", True),
        ("3 of 4 at 1.5e-3", "3 of 5 at 1.5e-3", False),
        ("1.03 faster", "1.03 slower", False),
        ("17 KiB", "125 KiB", True),
        ("17 values", "18 values", False),
        ("torch 2.13.0", "torch 2.14.0", False),
        ("first\n…\nlast", "first\nx\ny\nlast", True),
        ("first\nlast", "first\nx\nlast", False),
        ("in module.py:12", "in module.py:1345", True),
        ("@@ -12,1 +12,1 @@", "@@ -3,1 +3,1 @@", True),
        ("", "something", False),
    ],
)
def test_what_is_held_and_what_is_not(shown, printed, same):
    assert (examples.matched(shown, printed) is not None) == same


def test_writing_keeps_what_differs_from_machine_to_machine():
    assert examples.matched("time 1.50 …\n…\nend", "time 2.25 slower\nmore\nend") == "time 2.25 …\n…\nend"
    new = examples.written(PAGE, ["three: 3", "measured 0.25 at page.md:9 yes"])
    assert "```text\nthree: 3\n```" in new
    assert "measured 0.25 at page.md:9 …" in new
    with pytest.raises(SystemExit, match="line 2: this block prints, and no output with markers stands below it"):
        examples.written("```python\nprint(1)\n```\n", ["1"])


def test_an_example_that_breaks_its_word_is_caught(tmp_path):
    _, printed = ran(tmp_path, PAGE.replace("a = 2", "a = 3"))
    one, two = examples.blocks_of(PAGE)
    assert "-two: 2\n+two: 3" in examples.difference(one, printed[0])
    assert examples.difference(two, printed[1]) == ""
