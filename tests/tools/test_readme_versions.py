"""What the README says of torch versions, from the committed results."""

import re
from pathlib import Path

import pytest

from precision_eval.core.errors import RecordError
from tools.readme.costs import sweep_cost_markdown
from tools.readme.versions import versions_markdown

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def text():
    return versions_markdown(ROOT / "results" / "torch-versions", relative_to=ROOT)


def test_the_committed_sweep_tells_its_stories(text):
    """Dia turns over both ways with the norm's dtype; grouped heads leave the math kernel."""
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| 2")]
    told = {(row[0].lstrip("| "), row[1], row[2]): row[3] for row in rows}
    assert "147203" in told["2.6.0 → 2.7.1", "as_shipped: status: raised → passed", "dia-decode; eager"]
    assert "147203" in told["2.6.0 → 2.7.1", "as_shipped: status: passed → raised", "dia-decode-pr45; eager"]
    memory = [key for key, link in told.items() if "full_float32: peak memory" in key[1] and "157893" in link]
    assert [key[0] for key in memory] == ["2.8.0 → 2.9.1"]
    drift = [(key, link) for key, link in told.items() if ": drift:" in key[1] and key[0].endswith("2.9.1")]
    ((key, link),) = drift  # the half drift of grouped heads, over eight seeds; nothing of one seed
    assert "over 8 seeds" in key[1]
    assert "attention-decode" in key[2]
    assert "157893" in link


def test_the_stories_whose_cause_was_tried_are_told_above_the_table(text):
    told = [line for line in text[: text.index("| torch |")].splitlines() if line.startswith("- **torch")]
    assert [re.search(r"pull/(\d+)", line).group(1) for line in told] == ["147203", "147203", "157893"]
    assert all("Here: " in line and "How it is known: " in line for line in told)
    assert "likely" not in " ".join(told)


def test_a_row_counts_the_fixes_that_did_alike(text):
    assert re.search(r"upstream: drift: .*over 8 seeds; 1 other fix alike \|", text)
    assert re.search(r"full_float32: latency ÷ anchor: ×[\d.]+ to ×[\d.]+; \d other fixes alike", text)


def test_every_metric_and_turn_of_a_status_has_a_line_of_its_own(text):
    """One for what fell and one for what rose."""
    shown = re.findall(r"^\| (\S+ → \S+) \| \w+: ([^:|]+)(: [^|]+)? \| [^|]+ \| (.+) \|$", text, flags=re.MULTILINE)
    keys = [(at, what, change if what == "status" else "×0" in change, link) for at, what, change, link in shown]
    assert len(keys) >= 10
    by_link = [key for key in keys if "147203" not in key[3]]  # which explains three changes of torch
    assert len(set(by_link)) == len(by_link)


def test_the_readme_holds_it(text):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"<!-- versions:begin -->\n{text}\n<!-- versions:end -->" in readme


def test_what_the_sweep_cost_comes_last(text):
    assert text.endswith(sweep_cost_markdown(ROOT / "results" / "torch-versions"))


def test_a_folder_without_results_is_named(tmp_path):
    with pytest.raises(RecordError, match=re.escape(str(tmp_path))):
        versions_markdown(tmp_path, relative_to=tmp_path)
