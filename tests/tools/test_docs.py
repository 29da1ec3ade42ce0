"""The blocks of ``docs/``: markers, one line per fix over both modes, committed pages against committed results."""

import re
from pathlib import Path

import pytest
from made_runs import full_run, synthetic

from precision_eval.core.errors import ParameterError, RecordError
from precision_eval.results.reading import load_run
from tools.docs.pages import BLOCKS, PAGES, _is_of_few, page_text, results_markdown, write_page
from tools.docs.systems import system_table
from tools.docs.versions import versions_markdown

__all__ = ["full_run", "synthetic"]

ROOT = Path(__file__).resolve().parents[2]
SPLIT = {
    "input_cast_mse": 6.0,
    "compute_mse": 2.5,
    "output_rounding_mse": 1.0,
    "cross_mse": 0.5,
    "total_mse": 10.0,
}


@pytest.fixture
def results(synthetic, tmp_path):
    """A folder of results whose systems are a made-up run."""
    run = synthetic(tmp_path / "results" / "systems")
    run.attention("dia-decode", "cpu", "eager")
    run.attention("dia-decode", "cpu", "compiled")
    for record in run.records:
        if record["measure"] == "drift" and record["fix"] == "kv_to_query":
            record["data"] |= {"relative_error": 1.25e-3, "split": SPLIT}
    run.write()
    return tmp_path / "results"


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "dia.md"
    path.write_text("# Dia\n\n<!-- dia-decode:begin -->\nold\n<!-- dia-decode:end -->\n\nafter\n", encoding="utf-8")
    return path


def test_one_line_per_fix_over_both_modes(results):
    table = system_table(load_run(results / "systems"), "dia-decode")
    assert table.columns[:5] == ("fix", "eager", "compiled", "drift", "cast / compute / rounding / cross, %")
    cells = {row[0]: row for row in table.rows}
    assert cells["kv_to_query"][1:5] == ("passed", "passed", "1.3e-3", "60 / 25 / 10 / 5")
    assert cells["dynamo_fallback"][1:4] == ("–", "raised", "–")
    assert cells["full_float32"][5].startswith("A/A 1.00 [")


def test_what_every_table_notes_stands_once_and_what_nothing_cures_has_no_table(results):
    text = results_markdown(load_run(results / "systems"), relative_to=results)
    assert text.count("- Latency ratio: time over full_float32's, paired") == 1
    assert "All tables, and doubts of single processes: [systems/report.md](systems/report.md)." in text
    run = load_run(results / "systems")
    for section in run.sections:
        if not section.curing:
            assert f"**{section.title}**" not in text


@pytest.mark.parametrize(("told_of", "is_of_few"), [("in 4 of 8 processes", True), ("in 5 of 8 processes", False)])
def test_a_doubt_of_few_processes_is_left_to_the_report(told_of, is_of_few):
    assert _is_of_few(f"Doubt about autocast and float16: {told_of}: loaded machine") is is_of_few
    assert not _is_of_few("A/A: full_float32 against itself.")


def test_what_stands_outside_the_markers_stays(results, page):
    assert write_page(page, results)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Dia\n\n<!-- dia-decode:begin -->\n")
    assert text.endswith("<!-- dia-decode:end -->\n\nafter\n")
    assert "old" not in text
    assert not write_page(page, results)


def test_bad_input_is_named(results, page):
    page.write_text("<!-- metavoice:begin -->\n<!-- metavoice:end -->\n", encoding="utf-8")
    with pytest.raises(ParameterError, match="holds nothing of the case 'metavoice'; it holds dia-decode"):
        write_page(page, results)
    page.write_text("no markers", encoding="utf-8")
    with pytest.raises(ParameterError, match="has no markers"):
        write_page(page, results)
    with pytest.raises(RecordError, match=re.escape(str(results))):
        versions_markdown(results, relative_to=results)


def test_every_block_stands_in_one_page():
    found = [name for page in PAGES for name in re.findall(r"<!-- ([\w-]+):begin -->", read(page))]
    assert set(BLOCKS) <= set(found)
    assert all(found.count(name) == 1 for name in BLOCKS)


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_the_committed_page_is_what_the_committed_results_give(name):
    assert page_text(ROOT / "docs" / name, ROOT / "results") == read(name), "run `make docs`"


def read(page):
    return (ROOT / "docs" / page).read_text(encoding="utf-8")
