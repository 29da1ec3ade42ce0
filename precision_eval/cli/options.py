"""The options that several commands share, each declared once, so that a name means the same everywhere.

Names that take several values are singular, may be repeated, and take commas; ``split`` reads them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_SEVERAL = "names or globs; repeat the option, or separate them by commas"

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run; holds records.jsonl.")]
Case = Annotated[list[str] | None, typer.Option("--case", help=f"Cases: {_SEVERAL}.")]
Fix = Annotated[list[str] | None, typer.Option("--fix", help=f"Fixes: {_SEVERAL}; [dim]default: all[/dim]")]
Size = Annotated[
    list[str] | None,
    typer.Option("--size", help=f"Sizes of the cases: {_SEVERAL}; [dim]default: each case's own[/dim]"),
]
Mode = Annotated[list[str] | None, typer.Option("--mode", help="eager, compiled, or both, comma-separated.")]
Device = Annotated[
    str, typer.Option("--device", help="auto, cpu, cuda, cuda:i or mps; auto takes CUDA if there is a GPU.")
]
Out = Annotated[Path, typer.Option("--out", help="Folder of the results; the same command resumes there.")]
Json = Annotated[bool, typer.Option("--json", help="Print strict JSON instead.")]
Quick = Annotated[bool, typer.Option("--quick", help="Less of everything, for a first look.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Print every table, finding and note.")]
OpenReport = Annotated[bool, typer.Option("--open", help="Open the HTML report in a browser.")]
AsvResults = Annotated[Path | None, typer.Option("--results", help="Folder of asv's results, its results_dir.")]
