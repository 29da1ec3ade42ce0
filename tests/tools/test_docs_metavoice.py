"""What the page of MetaVoice says of prefill is what its own tables say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metavoice.md"
CLAIM = "in prefill bfloat16 throughout takes less time than float32 here"


def bfloat16_is_faster(text: str, case: str) -> bool:
    """Whether every latency interval of bfloat16 in a case's table ends below 1."""
    block = text.partition(f"<!-- {case}:begin -->")[2].partition(f"<!-- {case}:end -->")[0]
    row = next(line for line in block.splitlines() if line.startswith("| `bfloat16` |"))
    uppers = [float(high) for high in re.findall(r"\[[\d.]+, ([\d.]+)\]", row)]
    assert uppers, f"no latency of bfloat16 in the table of {case}"
    return all(high < 1.0 for high in uppers)


@pytest.mark.parametrize("case", ["metavoice-prefill", "metavoice-prefill-float32"])
def test_prefill_is_recommended_as_measured(case):
    text = PAGE.read_text(encoding="utf-8")
    said = CLAIM in " ".join(text.split())
    assert said == bfloat16_is_faster(text, case), "mend the recommendation in docs/metavoice.md: the table has changed"


def test_a_table_that_says_otherwise_is_seen():
    row = "| `bfloat16` | passed | passed | 8.4e-3 | – | 0.60 [0.59, 0.62] | 1.01 [0.99, 1.02] | 39.5 MiB |"
    assert not bfloat16_is_faster(f"<!-- w:begin -->\n{row}\n<!-- w:end -->", "w")
