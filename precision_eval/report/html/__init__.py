"""The HTML report of a run: one file that needs nothing else, the answer first.

Conventions: every number in it is an element that names where it comes from, so that a program can hold it
to the records: ``data-v`` is the value as recorded, ``data-record`` the cell and ``data-path`` the JSON pointer (RFC
6901) into that cell's line of ``records.jsonl``. Where a number is made of two, both are named, separated by a space,
and ``data-op`` says how (``sum``, ``difference``). The record ``environment.json`` is that file, and ``answer`` counts
the engine's choices (``/policy/fix/taken`` and ``/policy/fix/tied``). A sentence of the report or the engine stands in
an element with ``data-said``, which names its kind. Nothing is said by colour alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

FILE_NAME = "report.html"
LARGEST_BYTES = 15_000_000
"""What the file may weigh, players included."""

__all__ = ["FILE_NAME", "LARGEST_BYTES", "path_in_commands", "render_html", "write_html"]


def write_html(run_dir: Path, *, versions: Any = None) -> Path:
    """Write the HTML report of a run into its folder, whole or not at all; `versions` sums up torch versions."""
    from precision_eval.report.html.writing import write_html as write

    return write(Path(run_dir), versions=versions)


def render_html(run_dir: Path, *, versions: Any = None) -> str:
    """Return the text of the HTML report; see :func:`write_html`."""
    from precision_eval.report.html.writing import render_html as render

    return render(Path(run_dir), versions=versions)


def path_in_commands(directory: Path) -> str:
    """Return a run's folder as a command may name it: as given where that is relative, else by its name alone."""
    return directory.name if directory.is_absolute() else directory.as_posix()
