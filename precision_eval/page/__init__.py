"""The page of a run: one HTML file that needs nothing else, the answer first.

Conventions: every number on the page is an element that names where it comes from, so that a program can hold the page
to the records: ``data-v`` is the value as recorded, ``data-record`` the cell and ``data-path`` the JSON pointer (RFC
6901) into that cell's line of ``records.jsonl``. Where a number is made of two, both are named, separated by a space,
and ``data-op`` says how (``sum``, ``difference``). The record ``environment.json`` is that file, and ``answer`` counts
the engine's choices (``/policy/fix/taken`` and ``/policy/fix/tied``). A sentence of the report or the engine stands in
an element with ``data-said``, which names its kind. Nothing is said by colour alone.

Contents
--------
figures
    :class:`~.figures.Figure`: a number with its origin.
facts
    What is said of one fix in one group: the columns of tables, the lines shown at a mark.
places
    :class:`~.places.Place`: a group of the run with its section, its choices and its commands.
answer
    What to take, one row per group.
svg, looks
    Scales, axes, labels that keep apart; colours and shapes for light and dark.
tradeoff, lines, series, bars
    The charts.
tables, versions
    Tables of figures, statuses and messages; what torch versions change.
writing
    :func:`~.writing.render_page`, :func:`~.writing.write_page`.
sound
    Players and spectrograms.

Importing this loads neither torch nor numpy.
"""

from __future__ import annotations

from pathlib import Path

PAGE_NAME = "report.html"
LARGEST_BYTES = 15_000_000
"""What the page may weigh, players included."""

__all__ = ["LARGEST_BYTES", "PAGE_NAME", "render_page", "write_page"]


def write_page(run_dir: Path, *, versions_dir: Path | None = None) -> Path:
    """Write the page of a run into its folder, whole or not at all.

    Parameters
    ----------
    run_dir : Path
        Folder with ``records.jsonl``.
    versions_dir : Path, optional
        asv's ``results_dir`` over torch versions; without one the page says how to get one.

    Returns
    -------
    Path
        ``run_dir/report.html``.

    Raises
    ------
    RecordError
        There are no records, or they or the versions cannot be read.
    PageTooLargeError
        The page would weigh more than :data:`LARGEST_BYTES`.
    """
    from .writing import write_page as write

    return write(Path(run_dir), versions_dir=versions_dir)


def render_page(run_dir: Path, *, versions_dir: Path | None = None) -> str:
    """Return the text of the page; see :func:`write_page`."""
    from .writing import render_page as render

    return render(Path(run_dir), versions_dir=versions_dir)
