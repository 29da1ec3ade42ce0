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
from precision_eval.report.figures.lengths import ratios_by_length
from precision_eval.report.figures.tradeoff import draw_tradeoff
from precision_eval.report.html.page import render_html
from precision_eval.report.next_step import next_command
from precision_eval.report.tables import results_table
from precision_eval.report.writer import (
    TerminalAnswer,
    answer_dicts,
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


@pytest.fixture(params=["alone", "with another"])
def noisy(request, synthetic, tmp_path):
    """A case whose baseline differs from its own copy, alone or after one whose baseline does not."""
    run = synthetic(tmp_path)
    if request.param != "alone":
        run.attention("attention-decode", "256", "eager")
    run.attention("attention-decode", "512", "eager")
    for record in run.records:
        if (record["size"], record["fix"], record["measure"]) == ("512", "full_float32", "latency"):
            record["data"] |= {"ratio": 1.21, "ratio_low": 1.15, "ratio_high": 1.28, "verdict": "slower"}
    return load_run(run.write())


def test_no_view_recommends_by_times_that_failed_the_a_a_check(noisy):
    failed, several = noisy.sections[-1], len(noisy.sections) > 1
    page = render_html(noisy, {})
    answer = page.partition('<p class="answer">')[2].partition("</p>")[0]
    where = " in 1 of 2 cases" if several else ""
    assert answer.startswith(
        f"Could not tell{where}: run again on an idle machine, because full_float32 against its own "
    )
    assert ("for speed" in answer) == several
    assert "quality" in answer
    assert page.count(">could not tell: run again<") == 2  # for balance and for speed
    title = "attention-decode 512 eager · cpu: could not tell: run again"
    for text in (markdown_report(noisy, []), printed(print_answer, noisy), page):
        assert title in text
    assert answer_dicts(noisy)[-1]["outcome"] == "could not tell"
    assert next_command(noisy).startswith("precision-eval run --case attention-decode --size 512 --mode eager")
    labels = [text.get_text() for text in draw_tradeoff(noisy, failed).legends[0].get_texts()]
    assert "Pareto front" not in labels
    assert (
        "Pareto front" in [t.get_text() for t in draw_tradeoff(noisy, noisy.sections[0]).legends[0].texts]
    ) == several
    assert len(ratios_by_length(noisy.sections).get("float16", ())) == several


def test_what_a_record_says_is_neither_markup_nor_obeyed(run_dir):
    run = load_run(run_dir)
    reason = "\u202egnp.exe \x1b[31m<script>alert(1)</script> | `x`"
    hostile = replace(run, records=tuple(replace(r, reason=reason) if r.status == "raised" else r for r in run.records))
    texts = [printed(print_answer, hostile), markdown_report(hostile, []), render_html(hostile, {})]
    for text in texts:
        assert "gnp.exe" in text
        assert not {"\u202e", "\x1b"} & set(text)
    assert not any("<script>" in text for text in texts[1:])
