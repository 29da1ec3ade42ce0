"""Small tables as plain text and as HTML, for what shows itself in a console or a notebook."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with columns as wide as their widest cell, two spaces apart."""
    widths = [max(len(row[place]) for row in (columns, *rows)) for place in range(len(columns))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (columns, *rows))
    return "\n".join(line.rstrip() for line in lines)


def html_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return an HTML table with a caption; every text is escaped."""
    cell_style = ' style="text-align:left;vertical-align:top"'
    head = "".join(f"<th{cell_style}>{html.escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td{cell_style}>{html.escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    caption = f'<caption style="caption-side:top;text-align:left;font-weight:bold">{html.escape(title)}</caption>'
    table_style = ' style="font-variant-numeric:tabular-nums"'
    return f"<table{table_style}>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
