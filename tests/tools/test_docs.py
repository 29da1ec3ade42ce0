"""The blocks of ``docs/``: markers, tables of a case, committed pages against committed results."""

import re
from pathlib import Path

import pytest
from made_runs import full_run, synthetic

from precision_eval.core.errors import ParameterError
from tools.docs import BLOCKS, OF_OTHERS, PAGES, page_text, write_docs

__all__ = ["full_run", "synthetic"]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def results(synthetic, tmp_path):
    """A folder of results whose systems are a made-up run."""
    run = synthetic(tmp_path / "results" / "systems")
    run.attention("dia-decode", "cpu", "eager")
    run.attention("dia-decode", "cpu", "compiled")
    run.write()
    return tmp_path / "results"


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "dia.md"
    path.write_text("# Dia\n\n<!-- dia-decode:begin -->\nold\n<!-- dia-decode:end -->\n\nafter\n", encoding="utf-8")
    return path


def test_a_case_has_a_table_with_a_column_for_its_second_mode_and_what_is_outside_the_markers_stays(results, page):
    write_docs([page], results)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Dia\n\n<!-- dia-decode:begin -->\n**dia-decode")
    assert text.endswith("<!-- dia-decode:end -->\n\nafter\n")
    head, rows = re.search(r"^(\| fix .*)\n\|---.*\n((?:\|.*\n)+)", text, re.MULTILINE).groups()
    assert text.count("| fix |") == 1
    assert head.endswith("| compiled, time ratio |")
    assert "MDE" not in head
    cells = {row.split(" | ")[0].strip("|* "): row.strip("| \n").split(" | ") for row in rows.splitlines()}
    assert len(cells) == len(rows.splitlines())
    assert {len(row) for row in cells.values()} == {head.count("|") - 1}
    assert float(cells["kv_to_query"][-1].split()[0]) > 0
    assert "[" not in "".join(cells["kv_to_query"])
    assert "old" not in text
    assert page_text(page, results) == text


def test_bad_input_is_named(results, page):
    page.write_text("<!-- metavoice:begin -->\n<!-- metavoice:end -->\n", encoding="utf-8")
    with pytest.raises(ParameterError, match="holds nothing of the case 'metavoice'; it holds dia-decode"):
        page_text(page, results)
    page.write_text("<!-- dia-decode:begin -->\n", encoding="utf-8")
    with pytest.raises(ParameterError, match="must hold <!-- dia-decode:begin --> and then"):
        page_text(page, results)
    page.write_text("no markers", encoding="utf-8")
    with pytest.raises(ParameterError, match="has no markers"):
        page_text(page, results)


def test_every_block_is_in_one_page():
    names = [
        name for page in PAGES for name in OF_OTHERS.get(page) or re.findall(r"<!-- ([\w-]+):begin -->", read(page))
    ]
    assert {name: names.count(name) for name in BLOCKS} == dict.fromkeys(BLOCKS, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_the_committed_page_is_what_the_committed_results_give(name):
    assert page_text(ROOT / "docs" / name, ROOT / "results") == read(name), "run `make docs`"


def read(page):
    return (ROOT / "docs" / page).read_text(encoding="utf-8")
