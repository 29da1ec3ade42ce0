"""One snapshot of each view of a report, and what no view may do: cut a figure, run a formula, obey a message.

``SNAPSHOTS=write`` in the environment writes them anew.
"""

import csv
import io
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from made_runs import Synthetic
from rich.console import Console

from precision_eval.core.table import to_csv
from precision_eval.report.doubts import Footnotes
from precision_eval.report.tables import results_table
from precision_eval.report.writer import (
    TerminalAnswer,
    markdown_report,
    print_answer,
    print_report,
    tables_of,
    write_report,
)
from precision_eval.results.reading import load_run

SNAPSHOTS = Path(__file__).parent / "snapshots"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """Two cases, one of them over time, in both modes; nothing of it depends on the machine."""
    run = Synthetic(tmp_path_factory.mktemp("views") / "run", minutes=0.2)
    run.attention("attention-decode", "dia", "eager")
    for mode in ("eager", "compiled"):
        run.voice(mode)
    return run.write()


@pytest.fixture(scope="module")
def written(run_dir):
    """The texts, without figures: they are drawn by the tests of figures, and no snapshot holds their bytes."""

    def save(figure, folder, name):
        folder.mkdir(exist_ok=True)
        paths = folder / f"{name}.png", folder / f"{name}.svg"
        for path in paths:
            path.write_text("drawn")
        return paths

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("precision_eval.report.drawing.save", save)
        files = write_report(run_dir)
    return {path.name: path.read_text(encoding="utf-8") for path in files}


def check(name, text):
    path = SNAPSHOTS / name
    text = re.sub(r"data:(\w+/[\w+-]+);base64,[^\"]+", r"data:\1", text)
    if os.environ.get("SNAPSHOTS") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{name} changed; SNAPSHOTS=write writes it anew"


def printed(print_, run, width=80):
    console = Console(width=width, file=io.StringIO())
    print_(run, console)
    return console.file.getvalue()


@pytest.mark.parametrize("name", ["report.md", "report.html"])
def test_markdown_and_html(written, name):
    check(name, written[name])


def test_terminal(run_dir):
    text = printed(print_answer, load_run(run_dir))
    check("answer.txt", text)
    assert max(map(len, text.splitlines())) <= 80


def test_a_case_that_is_printed_early_is_not_printed_again_and_nothing_else_changes(run_dir):
    run = load_run(run_dir)
    console = Console(width=80, file=io.StringIO())
    answer = TerminalAnswer(console)
    answer.print_groups(run, "attention-decode")
    early = console.file.getvalue()
    answer.print_groups(run, "attention-decode")
    assert "attention-decode" in early
    assert "voice" not in early
    answer.print_rest(run)
    assert console.file.getvalue() == printed(print_answer, run)


def test_the_page_needs_no_script_and_no_network(written):
    page = written["report.html"]
    assert "<script" not in page
    assert not re.search(r"(?:src|href)=\"(?:https?:|//)", page)
    targets = set(re.findall(r'id="([^"]+)"', page))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= targets


@pytest.mark.parametrize("width", [60, 120])
def test_no_figure_is_cut_at_any_width(full_run, width):
    run = load_run(full_run)
    text, notes = printed(print_report, run, width), Footnotes()
    words = set(text.split())
    for group in run.sections:
        for table in tables_of(run, group, notes):
            for row in table.rows:
                assert {word for cell in row for word in cell.split()} <= words, (table.title, row)
    assert max(map(len, text.splitlines())) <= width


def test_csv_holds_every_scalar_and_parses_back(full_run):
    run = load_run(full_run)
    lines = list(csv.DictReader(io.StringIO(to_csv(results_table(run)))))
    identity = ("case", "size", "mode", "device", "fix")
    by_cell = {tuple(line[name] for name in identity): line for line in lines}
    assert len(by_cell) == len(lines)
    record = next(record for record in run.records if record.measure == "latency" and record.status == "passed")
    line = by_cell[tuple(getattr(record, name) for name in identity)]
    assert float(line["latency.ratio_low"]) == record.data["ratio_low"]
    assert "latency.block_median_s" not in line


def test_what_a_record_says_is_neither_markup_nor_obeyed(run_dir):
    run = load_run(run_dir)
    reason = "\u202egnp.exe \x1b[31m<script>alert(1)</script> | `x`"
    hostile = replace(run, records=tuple(replace(r, reason=reason) if r.status == "raised" else r for r in run.records))
    from precision_eval.report.html.page import render_html

    texts = [printed(print_answer, hostile), markdown_report(hostile, []), render_html(hostile, {})]
    for text in texts:
        assert "gnp.exe" in text
        assert not {"\u202e", "\x1b"} & set(text)
    assert not any("<script>" in text for text in texts[1:])
