"""A table of text, and how it is written for a terminal, Markdown, HTML, CSV and plain text.

Cells are text as a person reads it. Each writer escapes what its target would interpret and makes control characters
visible, so a cell may hold anything, an error message or a name from a user's file. :class:`Code` and :class:`Strong`
mark a whole cell.
"""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from precision_eval.core.errors import ParameterError
from precision_eval.core.formatting import MISSING, one_line, visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

KIND_STYLES: Mapping[str, str] = {"": "", "passed": "", "failed": "red", "reference": "dim", "chosen": "bold"}
"""Kind of a row to its style in a terminal; in HTML the kind is the row's class."""

_ALIGNMENTS = {"l": "left", "r": "right", "c": "center"}
_MARKDOWN_RULES = {"l": "---", "r": "---:", "c": ":---:"}
_WIDEST_CELL = 44
_GAP = 3

_MARKDOWN_SPECIAL = re.compile(
    r"&(?=#?\w+;)|<(?=[A-Za-z/!?])|\\(?=[!-/:-@\[-`{-~]|$)|[|`]|~(?=~)|(?<=~)~|\](?=[(\[:])|!(?=\[)"
    r"|\*(?=\S)|(?<=\S)\*|(?<![^\W_])_|_(?![^\W_])"
)
_MARKDOWN_ENTITIES = {"&": "&amp;", "<": "&lt;"}
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


class Code(str):
    """A cell in monospace, such as the name of a fix."""


class Strong(str):
    """A cell that stands out."""


class FigureCell(str):
    """A figure: its text with the interval and the marks of its footnotes, and the numbers as recorded."""

    value: float
    low: float | None
    high: float | None
    note: str

    def __new__(
        cls, text: str, *, value: float, low: float | None = None, high: float | None = None, note: str = ""
    ) -> FigureCell:
        cell = super().__new__(cls, f"{text}{note}")
        cell.value, cell.low, cell.high, cell.note = value, low, high, note
        return cell


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of text.

    `align` holds one letter per column, ``l``, ``r`` or ``c``; empty aligns every column left. `kinds` holds one name
    of ``KIND_STYLES`` per row; empty leaves every row plain.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    align: str = ""
    kinds: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.columns)
        wrong = next((row for row in self.rows if len(row) != count), None)
        if wrong is not None:
            raise ParameterError(f"table '{self.title}': a row has {len(wrong)} cells; expected {count}")
        if self.align and (len(self.align) != count or set(self.align) - set(_ALIGNMENTS)):
            raise ParameterError(f"table '{self.title}': align is '{self.align}'; expected {count} of l, r, c")
        if self.kinds and len(self.kinds) != len(self.rows):
            raise ParameterError(f"table '{self.title}': {len(self.kinds)} kinds for {len(self.rows)} rows")
        if unknown := set(self.kinds) - set(KIND_STYLES):
            raise ParameterError(f"table '{self.title}': unknown kinds {sorted(unknown)}; known: {list(KIND_STYLES)}")

    def alignment(self, column: int) -> str:
        """Return ``l``, ``r`` or ``c``."""
        return self.align[column] if self.align else "l"

    def kind(self, row: int) -> str:
        """Return the kind of a row; empty where it is plain."""
        return self.kinds[row] if self.kinds else ""


def make_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "", align: str = "") -> Table:
    return Table(columns=tuple(columns), rows=tuple(tuple(row) for row in rows), title=title, align=align)


def without_empty_columns(table: Table) -> Table:
    """Return the table without those columns, after the first, that no row fills."""
    kept = [
        column
        for column in range(len(table.columns))
        if column == 0 or any(row[column] not in ("", MISSING) for row in table.rows)
    ]
    return replace(
        table,
        columns=tuple(table.columns[column] for column in kept),
        rows=tuple(tuple(row[column] for column in kept) for row in table.rows),
        align="".join(table.alignment(column) for column in kept),
    )


def to_markdown(table: Table, *, heading: bool = True) -> str:
    """Return the table in GitHub's Markdown: its title in bold, its rows, its notes as a list."""
    lines = [f"**{markdown_text(table.title)}**", ""] if heading and table.title else []
    lines.append(_markdown_row(map(markdown_text, table.columns)))
    lines.append("|" + "|".join(_MARKDOWN_RULES[table.alignment(i)] for i in range(len(table.columns))) + "|")
    lines += [_markdown_row(map(markdown_text, row)) for row in table.rows]
    if table.notes:
        lines += ["", *(f"- {markdown_text(note)}" for note in table.notes)]
    return "\n".join(lines)


def markdown_text(text: str) -> str:
    """Return a text as one line of Markdown that reads as the text does, also inside a table."""
    line = one_line(text).strip()
    escaped = _MARKDOWN_SPECIAL.sub(lambda match: _MARKDOWN_ENTITIES.get(match[0], f"\\{match[0]}"), line)
    if not line:
        return ""
    if isinstance(text, Code):
        return f"<code>{escaped}</code>" if any(char in line for char in "`|\\") else f"`{line}`"
    if isinstance(text, Strong):
        return "**" + re.sub(r"(?<!\\)\*", r"\*", escaped) + "**"  # one that stands alone would join the marks
    return escaped


def to_html(table: Table) -> str:
    """Return the table as HTML: its title as caption, its notes in the foot, each row's kind as its class."""
    columns = range(len(table.columns))
    styles = [f' style="text-align:{_ALIGNMENTS[table.alignment(i)]};vertical-align:top"' for i in columns]
    head = "".join(f"<th{style}>{html_text(name)}</th>" for style, name in zip(styles, table.columns, strict=True))
    body = ""
    for number, row in enumerate(table.rows):
        kind = f' class="{table.kind(number)}"' if table.kind(number) else ""
        cells = "".join(f"<td{style}>{html_text(cell)}</td>" for style, cell in zip(styles, row, strict=True))
        body += f"<tr{kind}>{cells}</tr>"
    title_style = "caption-side:top;text-align:left;font-weight:bold"
    caption = f'<caption style="{title_style}">{html_text(table.title)}</caption>' if table.title else ""
    span = f' colspan="{len(table.columns)}" style="text-align:left"'
    notes = "".join(f"<tr><td{span}>{html_text(note)}</td></tr>" for note in table.notes)
    foot = f"<tfoot>{notes}</tfoot>" if notes else ""
    opening = '<table style="font-variant-numeric:tabular-nums">'
    return f"{opening}{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody>{foot}</table>"


def html_text(text: str) -> str:
    """Return a text as HTML that reads as the text does."""
    escaped = html.escape(one_line(text))
    if isinstance(text, Code):
        return f"<code>{escaped}</code>"
    if isinstance(text, FigureCell) and " [" in escaped:
        middle, _, interval = escaped.partition(" [")
        return f'{middle} <span class="interval">[{interval}</span>'
    return f"<strong>{escaped}</strong>" if isinstance(text, Strong) else escaped


def to_csv(table: Table) -> str:
    """Return columns and rows as comma-separated values; title and notes are left out."""
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator="\n").writerows([csv_cell(cell) for cell in row] for row in _all_rows(table))
    return file.getvalue()


def csv_cell(value: Any) -> Any:
    """Return a value that no spreadsheet runs as a formula; numbers stay numbers, and None is empty."""
    if value is None or isinstance(value, bool | int | float):
        return "" if value is None else value
    is_formula = str(value).startswith(_FORMULA_STARTS) and not _is_number(str(value))
    line = one_line(str(value))
    return f"'{line}" if is_formula else line


def to_text(table: Table) -> str:
    """Return columns and rows as plain text, aligned, two spaces apart."""
    rows = [[one_line(cell) for cell in row] for row in _all_rows(table)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    align = {"l": str.ljust, "r": str.rjust, "c": str.center}
    writers = [align[table.alignment(column)] for column in range(len(widths))]
    lines = (
        "  ".join(write(cell, width) for write, cell, width in zip(writers, row, widths, strict=True)) for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def print_table(
    table: Table, console: Console, *, styles: Mapping[str, str] | None = None, compact: bool = False
) -> None:
    """Print the title, the rows in as many parts as the width asks for, and the notes."""
    if table.title:
        print_lines([one_line(table.title)], console, style="bold")
    for part in rich_tables(table, width=console.width, styles=styles, compact=compact):
        console.print(part)
    print_lines([f"  {one_line(note)}" for note in table.notes], console, style="dim")


def print_lines(lines: Iterable[str], console: Console, *, style: str = "", soft_wrap: bool = False) -> None:
    """Print lines as they read: nothing in them is markup, and what a terminal would obey is written out."""
    for line in lines:
        text = visible(line)
        console.print(text, style=style or None, highlight=False, markup=False, emoji=False, soft_wrap=soft_wrap)


def rich_tables(
    table: Table, *, width: int, styles: Mapping[str, str] | None = None, compact: bool = False
) -> list[RichTable]:
    """Return the rows as tables of rich that fit into `width` characters; each repeats the first column.

    `styles` maps the text of a cell to its style, for words such as ``passed``; `compact` leaves out rules and blanks.
    """
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    parts = []
    for columns in _column_parts(table, width=width, gap=2 if compact else _GAP):
        part = RichTable(
            box=None if compact else box.SIMPLE_HEAD, pad_edge=False, header_style="dim" if compact else "bold"
        )
        for column in columns:
            heading = Text(one_line(table.columns[column]))
            part.add_column(
                heading,
                width=_width(table, column),
                justify=_ALIGNMENTS[table.alignment(column)],  # type: ignore[arg-type]
            )
        for number, row in enumerate(table.rows):
            cells = (Text(one_line(row[column]), style=_cell_style(row[column], styles)) for column in columns)
            part.add_row(*cells, style=KIND_STYLES[table.kind(number)])
        parts.append(part)
    return parts


def _cell_style(cell: str, styles: Mapping[str, str] | None) -> str:
    return (styles or {}).get(cell, "bold" if isinstance(cell, Strong) else "")


def _column_parts(table: Table, *, width: int, gap: int) -> list[list[int]]:
    """Group the columns after the first so that each group fits to the right of it."""
    parts: list[list[int]] = [[0]]
    first = used = _width(table, 0) + gap
    for column in range(1, len(table.columns)):
        needed = _width(table, column) + gap
        if len(parts[-1]) > 1 and used + needed - gap > width:
            parts.append([0])
            used = first
        parts[-1].append(column)
        used += needed
    return parts


def _width(table: Table, column: int) -> int:
    """Natural width of a column: its widest cell (long prose may wrap), and its heading over two lines."""
    from rich.cells import cell_len

    heading = one_line(table.columns[column])
    words = max(map(cell_len, heading.split()), default=1)
    cells = min(max((cell_len(one_line(row[column])) for row in table.rows), default=0), _WIDEST_CELL)
    return max(words, -(-cell_len(heading) // 2), cells)


def _markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _all_rows(table: Table) -> tuple[tuple[str, ...], ...]:
    return (table.columns, *table.rows)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
