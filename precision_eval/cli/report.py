"""Writes a run's report and then its HTML report; what ``report`` does, and ``run`` at its end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

VERSIONS_NAME = "torch-versions"
"""Folder beside a run where ``torch-sweep`` leaves its results unless told otherwise."""


def write_reports(run_dir: Path, *, console: Console, versions_dir: Path | None = None) -> None:
    """Print the report, write its files and the HTML report."""
    from precision_eval.report import write_report
    from precision_eval.report.html import write_html

    write_report(run_dir, console=console)
    with console.status("making the HTML report"):
        path = write_html(run_dir, versions=_versions(run_dir, versions_dir, console))
    console.print(f"The HTML report, for a browser: {path}", highlight=False, markup=False, soft_wrap=True)


def _versions(run_dir: Path, versions_dir: Path | None, console: Console) -> Any:
    """Sum up the results over torch versions that were asked for, or that lie beside the run; None without any."""
    from precision_eval.core.errors import PrecisionEvalError
    from precision_eval.report.html import path_in_commands
    from precision_eval.studies.versions.summary import versions_summary

    folder = versions_dir or versions_beside(run_dir)
    if folder is None:
        return None
    try:
        return versions_summary(folder, run_dir=run_dir, shown=path_in_commands(run_dir))
    except PrecisionEvalError as error:
        if versions_dir is not None:
            raise
        # nobody asked for them: they must not cost the run its HTML report
        line = f"The HTML report goes without torch versions: {error}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
        return None


def versions_beside(run_dir: Path) -> Path | None:
    """Return the folder of results over torch versions beside a run; None where there is none."""
    folder = (run_dir if run_dir.name else run_dir.resolve()).parent / VERSIONS_NAME
    return folder if folder.is_dir() else None
