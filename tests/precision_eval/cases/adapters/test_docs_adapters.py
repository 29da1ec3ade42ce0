"""What the pages say of the real classes under each fix is what those classes do."""

from __future__ import annotations

from pathlib import Path

import pytest

from precision_eval.cases.adapters import ADAPTERS
from precision_eval.results.expectations import observe

DOCS = Path(__file__).resolve().parents[4] / "docs"
PAGES = {"zoo-dia": "dia", "zoo-t5-encoder": "cogvideo-t5", "zoo-svd-time-embed": "imaginairy"}


def shown(entry_id):
    """Read the table below the section that names a class: {fix: cell}."""
    section = (DOCS / f"{PAGES[entry_id]}.md").read_text(encoding="utf-8").partition("own class\n")[2]
    assert f"`{entry_id}`" in section
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    return {fix.strip("`"): cell for fix, cell in rows}


def test_every_entry_has_its_page():
    assert set(PAGES) == {entry.id for entry in ADAPTERS}


@pytest.mark.parametrize("entry", ADAPTERS, ids=lambda entry: entry.id)
def test_the_page_says_what_the_class_does(entry):
    for library in entry.needs:
        pytest.importorskip(library)
    cells = observe(("eager",), cases=(entry.case(),)).cells
    found = {
        key.split("/")[1]: f"raised: {cell.message}" if cell.status == "raised" else cell.status
        for key, cell in cells.items()
    }
    assert shown(entry.id) == found
