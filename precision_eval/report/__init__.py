"""The report of a run, made from its records alone: tables, figures, Markdown and CSV."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["write_report"]


def write_report(run_dir: Path, *, console: Console | None = None) -> list[Path]:
    """Write the files of a run's report into its folder, and print it where a console is given.

    Parameters
    ----------
    run_dir : Path
        Folder with ``records.jsonl``.
    console : rich.console.Console, optional
        Where every table, the findings and the reading guide are printed.

    Returns
    -------
    list of Path
        ``report.md``, ``results.csv``, then figures as PNG and SVG under ``figures/``. A figure whose measure is
        missing is left out; report.md says why.

    Raises
    ------
    RecordError
        There are no records, or they cannot be read.
    """
    from precision_eval.report.writer import write_files

    return write_files(Path(run_dir), console=console)
