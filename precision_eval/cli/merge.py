"""The command ``merge``: the runs of several machines, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from precision_eval.cli import options
from precision_eval.core.errors import ParameterError
from precision_eval.core.files import check_own_folder, to_json
from precision_eval.core.formatting import memory_text
from precision_eval.core.table import print_lines
from precision_eval.results.contributed import pack as packed

HELP = """\
Every time is a ratio to the same machine's own baseline; no time of one machine is compared with another's. It says
which fix is fastest where, which orders of two fixes every machine calls alike, and which turn over. Rows are hardware
and torch version; folders are never pooled. Cases of unlike definition, baseline or state of memory are kept apart by
name; records without their environment, and a measurement that is given twice, are refused.

[bold]Examples[/bold]

[cyan]precision-eval merge runs/laptop runs/server --out runs/machines[/cyan]

[cyan]precision-eval merge results/machines/* --json[/cyan]

[cyan]precision-eval merge runs/laptop --pack laptop.jsonl[/cyan]  one small file to send, which merge takes as a RUN
"""


def merge(
    run_dirs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, or one file each.")],
    out: Annotated[Path | None, typer.Option(help="Folder for machines.md, machines.html and machines.json.")] = None,
    pack: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the one RUN as one file instead, to send it.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Merge runs."""
    if pack is not None:
        _pack(run_dirs, pack)
        return
    from precision_eval.report.machines import NAME, print_machines, to_dict, write_machines
    from precision_eval.results.machines import merged

    if out is not None:
        check_own_folder(out, f"{NAME}.json")
    runs = merged(run_dirs)
    files = [] if out is None else write_machines(runs, out)
    if as_json:
        print(to_json(to_dict(runs), what="the answer", indent=1))
        return
    console = Console(emoji=False)
    print_machines(runs, console)
    if files:
        print_lines([f"written: {', '.join(map(str, files))}"], console, style="dim", soft_wrap=True)


def _pack(run_dirs: list[Path], file: Path) -> None:
    if len(run_dirs) != 1:
        raise ParameterError(f"--pack takes one RUN, {len(run_dirs)} were given; pack each into a file of its own")
    print(f"{file}: {memory_text(packed(run_dirs[0], file))}")
