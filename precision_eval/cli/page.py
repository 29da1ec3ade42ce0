"""Writes a run's report and then its page; what ``report`` does, and ``run`` at its end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

VERSIONS_NAME = "torch-versions"
"""Folder beside a run where ``torch-sweep`` leaves its results unless told otherwise."""


def report_and_page(run_dir: Path, *, console: Console, versions_dir: Path | None = None) -> None:
    """Print the report, write its files and the page."""
    from precision_eval.core.errors import PrecisionEvalError
    from precision_eval.report import write_report
    from precision_eval.report.html import write_page

    write_report(run_dir, console=console)
    beside = None if versions_dir else versions_beside(run_dir)
    with console.status("making the page"):
        try:
            page = write_page(run_dir, versions_dir=versions_dir or beside)
        except PrecisionEvalError as error:
            if beside is None:
                raise
            said = f"The page goes without torch versions: {error}"  # nobody asked for them: they cost a run no page
            console.print(said, highlight=False, markup=False, soft_wrap=True)
            page = write_page(run_dir)
    console.print(f"The page, for a browser: {page}", highlight=False, markup=False, soft_wrap=True)


def versions_beside(run_dir: Path) -> Path | None:
    """Return the folder of results over torch versions beside a run; None where there is none."""
    folder = (run_dir if run_dir.name else run_dir.resolve()).parent / VERSIONS_NAME
    return folder if folder.is_dir() else None
