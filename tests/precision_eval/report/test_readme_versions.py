"""What the README says of torch versions, from the committed results."""

import re
from pathlib import Path

import pytest

from precision_eval.errors import RecordError
from precision_eval.report.readme import versions_markdown

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def text():
    return versions_markdown(ROOT / "results" / "torch-versions", relative_to=ROOT)


def test_the_committed_sweep_tells_its_stories(text):
    """Dia turns over both ways with the norm's dtype; grouped heads leave the math kernel."""
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| 2")]
    told = {(row[0].lstrip("| "), row[1], row[2]): row[3] for row in rows}
    assert "147203" in told["2.7.1", "as_shipped: status: raised → passed", "dia-decode; eager"]
    assert "147203" in told["2.7.1", "as_shipped: status: passed → raised", "dia-decode-pr45; eager"]
    memory = [key for key, link in told.items() if "full_float32: peak memory" in key[1] and "157893" in link]
    assert [key[0] for key in memory] == ["2.9.1"]


def test_every_metric_and_turn_of_a_status_has_a_line_of_its_own(text):
    shown = re.findall(r"^\| (\S+) \| \w+: ([^:|]+)(: [^|]+)? \| [^|]+ \| (.+) \|$", text, flags=re.MULTILINE)
    keys = [(at, what, change if what == "status" else "", link) for at, what, change, link in shown]
    assert len(keys) >= 10
    by_link = [key for key in keys if "147203" not in key[3]]  # which explains three changes of torch
    assert len(set(by_link)) == len(by_link)


def test_the_readme_holds_it(text):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"<!-- versions:begin -->\n{text}\n<!-- versions:end -->" in readme


def test_a_folder_without_results_is_named(tmp_path):
    with pytest.raises(RecordError, match=re.escape(str(tmp_path))):
        versions_markdown(tmp_path, relative_to=tmp_path)
