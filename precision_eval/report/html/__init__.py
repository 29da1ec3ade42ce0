"""The page of a run: one HTML file that needs nothing else, the answer first.

Conventions: every number on the page is an element that names where it comes from, so that a program can hold the page
to the records: ``data-v`` is the value as recorded, ``data-record`` the cell and ``data-path`` the JSON pointer (RFC
6901) into that cell's line of ``records.jsonl``. Where a number is made of two, both are named, separated by a space,
and ``data-op`` says how (``sum``, ``difference``). The record ``environment.json`` is that file, and ``answer`` counts
the engine's choices (``/policy/fix/taken`` and ``/policy/fix/tied``). A sentence of the report or the engine stands in
an element with ``data-said``, which names its kind. Nothing is said by colour alone.
"""

from __future__ import annotations

from pathlib import Path

PAGE_NAME = "report.html"
LARGEST_BYTES = 15_000_000
"""What the page may weigh, players included."""

__all__ = ["LARGEST_BYTES", "PAGE_NAME", "render_page", "write_page"]


def write_page(run_dir: Path, *, versions_dir: Path | None = None) -> Path:
    """Write the page of a run into its folder, whole or not at all."""
    from precision_eval.report.html.writing import write_page as write

    return write(Path(run_dir), versions_dir=versions_dir)


def render_page(run_dir: Path, *, versions_dir: Path | None = None) -> str:
    """Return the text of the page; see :func:`write_page`."""
    from precision_eval.report.html.writing import render_page as render

    return render(Path(run_dir), versions_dir=versions_dir)
