"""The command ``init``: files that a user's own repository begins with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from precision_eval.cli.application import MODEL, app


@app.command(rich_help_panel=MODEL)
def init(
    folder: Annotated[Path, typer.Argument(help="Root of your repository.")] = Path(),
) -> None:
    """Write a commented case file, a pytest file, asv's two files and a CI workflow into your repository."""
    from precision_eval.studies.starter import write_files

    for path in write_files(folder):
        print(f"written: {path}")
