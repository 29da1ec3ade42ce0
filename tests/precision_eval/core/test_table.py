"""Tables: each target, read by an independent parser, shows the text of the cells and nothing else."""

import csv
import io
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.console import Console

from precision_eval.core.errors import ParameterError
from precision_eval.core.formatting import one_line
from precision_eval.core.table import (
    Code,
    Strong,
    Table,
    csv_cell,
    make_table,
    markdown_text,
    print_table,
    to_csv,
    to_html,
    to_markdown,
    to_text,
)

HOSTILE = st.text(
    alphabet=st.sampled_from("ab |\\`*_<>&;[](){}#!~:=+-@\"'\n\r\t\x00\x07\x1b\u202e\u2028é1"), max_size=12
)
ROWS = st.lists(st.tuples(HOSTILE, HOSTILE), min_size=1, max_size=3)


def squeezed(text):
    return " ".join(one_line(text).split())


def markdown_cells(text):
    """Cells as a CommonMark parser with tables reads them; markup in a cell shows as its source, so it would differ."""
    rows, row = [], None
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text):
        if token.type == "tr_open":
            row = []
        elif token.type == "tr_close":
            rows.append(tuple(row))
        elif token.type == "inline" and row is not None:
            row.append(
                "".join(
                    part.content if part.type in ("text", "text_special") else f"<{part.type}>"
                    for part in token.children
                )
            )
    return rows


def html_rows(text):
    return [["".join(cell.itertext()) for cell in row] for row in ElementTree.fromstring(text).iter("tr")]


@given(ROWS)
def test_markdown_shows_every_cell_as_it_is(rows):
    cells = markdown_cells(to_markdown(make_table(("first", "second"), rows)))
    assert [tuple(map(squeezed, row)) for row in cells] == [
        ("first", "second"),
        *(tuple(map(squeezed, row)) for row in rows),
    ]


@given(HOSTILE, st.sampled_from([Code, Strong]))
def test_a_marked_cell_keeps_its_text_and_its_column(text, mark):
    table = make_table(("first", "second"), [(mark(text), "end")])
    parsed = MarkdownIt("commonmark").enable("table").render(to_markdown(table))
    assert [squeezed(cell) for cell in html_rows(parsed.replace("\n", ""))[-1]] == [squeezed(text), "end"]


@given(ROWS)
def test_html_shows_every_cell_and_opens_no_other_element(rows):
    written = to_html(make_table(("first", "second"), rows))
    assert html_rows(written)[1:] == [[one_line(cell) for cell in row] for row in rows]
    tags = {node.tag for node in ElementTree.fromstring(written).iter()}
    assert tags <= {"table", "thead", "tbody", "tr", "th", "td"}


@given(ROWS)
def test_csv_gives_the_cells_back_and_no_formula(rows):
    parsed = list(csv.reader(io.StringIO(to_csv(make_table(("first", "second"), rows)))))
    assert [[cell.removeprefix("'") for cell in row] for row in parsed[1:]] == [
        [one_line(cell).removeprefix("'") for cell in row] for row in rows
    ]
    assert not any(cell.startswith(("=", "@", "+", "-")) and len(cell) > 2 and not number(cell) for cell in parsed[1])


def number(text):
    return text.lstrip("+-").replace(".", "").isdigit()


@given(ROWS)
def test_no_writer_lets_a_control_character_through(rows):
    table = Table(columns=("first", "second"), rows=tuple(rows), title="\x1b[31m", notes=("\x9b2J",))
    file = io.StringIO()
    print_table(table, Console(file=file, width=200, color_system=None))
    for text in (file.getvalue(), to_markdown(table), to_html(table), to_csv(table), to_text(table)):
        assert all(char == "\n" or char.isprintable() for char in text)


def test_a_terminal_shows_markup_as_text():
    file = io.StringIO()
    table = make_table(("name", "reason"), [("[bold]x[/bold]", "[/] :smile:")], title="[red]title")
    print_table(table, Console(file=file, width=100, color_system=None))
    assert "[red]title" in file.getvalue()
    assert "[bold]x[/bold]" in file.getvalue()
    assert "[/] :smile:" in file.getvalue()


def test_a_wide_table_is_printed_in_parts_that_repeat_the_first_column():
    table = make_table(("fix", *(f"column{i}" for i in range(8))), [("bfloat16", *("x" * 12 for _ in range(8)))])
    file = io.StringIO()
    print_table(table, Console(file=file, width=60, color_system=None))
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= 60
    assert sum("bfloat16" in line for line in lines) > 1
    assert file.getvalue().count("x" * 12) == 8


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("=1+1", "'=1+1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("-x", "'-x"),
        ("-3.5e-2", "-3.5e-2"),
        (-3.5, -3.5),
        (None, ""),
        ("\t=1", "' =1"),
        ("a\x1bb", "a\\x1bb"),
    ],
)
def test_csv_keeps_numbers_and_disarms_formulas(value, written):
    assert csv_cell(value) == written


def test_markdown_reads_plainly_where_nothing_needs_escaping():
    text = "kv_to_query 0.830 [0.820, 0.840], 3 * 2 < 7 & passed *"
    assert markdown_text(text) == text
    assert markdown_text(Code("kv_to_query")) == "`kv_to_query`"
    assert markdown_text(Strong("no")) == "**no**"
    assert markdown_text(Strong("*")) == r"**\***"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rows": (("x",),)}, "a row has 1 cells; expected 2"),
        ({"align": "l"}, "align is 'l'"),
        ({"align": "lx"}, "expected 2 of l, r, c"),
        ({"kinds": ()}, None),
        ({"kinds": ("passed", "failed")}, "2 kinds for 1 rows"),
        ({"kinds": ("great",)}, "unknown kinds"),
    ],
)
def test_a_table_that_does_not_fit_together_is_refused(changed, message):
    content = {"columns": ("a", "b"), "rows": (("1", "2"),), **changed}
    if message is None:
        assert Table(**content).kind(0) == ""
    else:
        with pytest.raises(ParameterError, match=message):
            Table(**content)
