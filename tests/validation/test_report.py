"""Figures as tables of docs/validation.md: one claim per row, from stored figures, summaries and trials."""

import json

import pytest

from precision_eval.core.errors import ParameterError, RecordError
from precision_eval.core.table import to_markdown
from validation import report
from validation.frame import Figure
from validation.report import claims_tables, plain_share, share_text, span, stored_markdown, write_page


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_a_claim_is_a_row_with_what_asv_finds():
    figures = [
        Figure("a", "1", "0", met=True, rivals={"t": "5 of 9", "asv, factor 1.1": "33.3 % [6.1, 79.2], 1 of 3"}),
        Figure("b", "1.05 [1.04, 1.06], 9 pairs", "0", met=False),
        Figure("shown elsewhere", "3"),
    ]
    (table,) = claims_tables(figures)
    assert to_markdown(table) == (
        "| figure | target | found | asv |\n|---|---|---|---|\n| a | 0 | 1 | 1 of 3 |\n| b | 0 | **1.05** |  |"
    )


def test_a_condition_is_a_column():
    figures = [
        Figure("a, quiet", "0.0 % [0.0, 1.0], 0 of 400", "0", met=True, rivals={"asv": "2 of 3"}),
        Figure("a, loud", "9", "0", met=False),
        Figure("b, loud", "3", "0", met=True),
        Figure("c", "5", "5", met=True),
    ]
    first, second = claims_tables(figures, r", (quiet|loud)$")
    assert first.columns == ("figure", "target", "quiet", "loud", "asv")
    assert first.rows == (("a", "0", "0 of 400", "9", "2 of 3"), ("b", "0", "", "3", ""))
    assert second.rows == (("c", "5", "5"),)


def test_stored_figures_and_summaries_are_read(tmp_path):
    rows = [{"name": name, "found": "1", "target": "0", "met": True, "rivals": {}} for name in "ab"]
    text = stored_markdown("memory", write(tmp_path / "figures.json", {"memory": rows}))
    assert text.endswith("| a | 0 | 1 |\n| b | 0 | 1 |")
    shares = {"1": {"precision-eval versions": [1, 20]}, "2": {"precision-eval versions": [8, 10]}}
    text = stored_markdown("versions", write(tmp_path / "versions.json", {"shares": shares}))
    assert "| step × 2 found at its version | ≥ 90 % | **8 of 10** |" in text
    write(tmp_path / "versions.json", {"shares": 3})
    with pytest.raises(RecordError, match=r"versions\.json does not hold .*trials of versions"):
        stored_markdown("versions", tmp_path / "versions.json")
    assert stored_markdown("gate", tmp_path / "gate.json").startswith("Not measured: there is no `gate.json` yet.")


def test_a_page_keeps_what_is_outside_its_markers(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "STORED", {"memory": "figures.json"})
    row = {"name": "a", "found": "1", "target": "0", "met": True, "rivals": {}}
    write(tmp_path / "figures.json", {"memory": [row, row]})
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- memory:begin -->\nold\n<!-- memory:end -->\nafter\n", encoding="utf-8")
    write_page(page, tmp_path)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n<!-- memory:begin -->\n| figure")
    assert text.endswith("| 1 |\n<!-- memory:end -->\nafter\n")
    page.write_text("no markers", encoding="utf-8")
    with pytest.raises(ParameterError, match="must hold <!-- memory:begin --> and then"):
        write_page(page, tmp_path)


def test_shares_and_spans():
    assert (share_text(0, 0), plain_share(0, 0)) == ("–", "–")
    assert share_text(1500, 3000) == "50.0 % [48.2, 51.8], 1,500 of 3,000"
    assert share_text(1, 2, interval=(0.25, 0.75), digits=2) == "50.00 % [25.00, 75.00], 1 of 2"
    assert (span([2, 1], "d"), span([0.5, 0.501], ".2g")) == ("1 to 2", "0.5")
