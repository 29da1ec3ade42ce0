"""Writes a run's report and then its page; what ``report`` does, and ``run`` at its end.

Contents: :func:`report_and_page`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def report_and_page(run_dir: Path, *, console: Console, versions_dir: Path | None = None) -> None:
    """Print the report, write its files and the page.

    Parameters
    ----------
    run_dir : Path
    console : rich.console.Console
    versions_dir : Path, optional
        asv's ``results_dir`` over torch versions, for the page.

    Raises
    ------
    RecordError
        There are no records, or they or the versions cannot be read.
    """
    from precision_eval.page import write_page
    from precision_eval.report import write_report

    write_report(run_dir, console=console)
    with console.status("making the page"):
        page = write_page(run_dir, versions_dir=versions_dir)
    console.print(f"The page, for a browser: {page}", highlight=False, markup=False, soft_wrap=True)
