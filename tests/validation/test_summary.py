"""The table that opens docs/validation.md: every claim has its figure, and what missed is bold."""

import re
from pathlib import Path

import pytest

from precision_eval.core.errors import RecordError
from validation import summary
from validation.frame import Figure

ROOT = Path(__file__).resolve().parents[2]
SOURCE = summary.Source("sound", "sound.json", "the-verdict-on-sound")
FIGURES = [
    Figure("alarms, quiet", "2 of 9", "≤ 1 %", met=False, rivals={"silent": "1 of 2 (missed: all)", "clean": "2 of 2"}),
    Figure("alarms, bursty", "0 of 9", "≤ 1 %", met=True),
]


def found(figure, column=""):
    return summary._found(summary.Claim("", figure, column, "all"), FIGURES, SOURCE)


def test_a_claim_is_of_one_figure_or_of_all():
    assert found("alarms, q") == ("alarms, quiet", "≤ 1 %", "2 of 9", False)
    assert found("alarms, q", "silent") == ("alarms, quiet", "all", "1 of 2", False)
    assert found("alarms, q", "clean") == ("alarms, quiet", "all", "2 of 2", True)
    assert found(summary.EVERY) == ("", "all", "1 of 2", False)


@pytest.mark.parametrize("figure", ["alarms", "nothing"])
def test_a_figure_that_was_renamed_is_an_error_and_no_empty_row(figure):
    with pytest.raises(RecordError, match=rf"sound\.json has \d figures that begin with '{figure}', expected one"):
        found(figure)


def test_every_section_of_the_table_is_on_the_page():
    titles = re.findall(r"^##+ (.+)$", (ROOT / "docs" / "validation.md").read_text(encoding="utf-8"), re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    assert {source.section for source in summary.CLAIMS} <= anchors
