"""What is done around the package and not shipped with it: ``python -m tools``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from precision_eval.cli.application import flowing, run_application, split

app = typer.Typer(
    name="tools", no_args_is_help=True, add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False
)

_SWEEP_HELP = """Run the asv benchmarks of HEAD under each torch version: an environment per version, then asv in it.

The same command goes on where it was stopped. Latencies come last and in rounds, the versions in turn. On Linux the
default index has CUDA builds of torch, several GB per version; UV_TORCH_BACKEND=cpu takes CPU builds. Exit code 1 where
a version is not complete.

[bold]Examples[/bold]

[cyan]python -m tools torch-sweep[/cyan]  every version of asv.versions.json

[cyan]python -m tools torch-sweep --versions 2.6.0,2.8.0 --bench 'track_(status|drift)' --results runs/two[/cyan]
"""


@app.command(name="torch-sweep", help=flowing(_SWEEP_HELP))
def torch_sweep(
    versions: Annotated[list[str] | None, typer.Option(help="Such as 2.6.0,2.8.0.")] = None,
    bench: Annotated[str | None, typer.Option(metavar="REGEX", help="Only these benchmarks, without rounds.")] = None,
    results: Annotated[Path | None, typer.Option(help="Folder of asv's results.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Visits to each version for the latencies.")] = 3,
) -> None:
    """Sweep torch versions."""
    from tools.torch_sweep import plan_sweep, run_sweep

    sweep = plan_sweep(split(versions or []), bench=bench, results=results, rounds=rounds)
    incomplete = run_sweep(sweep)
    print(f"{len(sweep.versions) - len(incomplete)} of {len(sweep.versions)} torch versions; results: {sweep.results}")
    if incomplete:
        print(f"not complete: {', '.join(incomplete)}; the same command tries again what is missing")
        raise typer.Exit(1)


_CAPABILITIES_HELP = """Run the tests under other kernels, thread counts, Pythons and torch versions.

Each setting is one run of pytest; what torch, oneDNN, MKL and OpenBLAS then took is recorded with the counts. Kernels
and threads run the tests of floating values, a Python and a torch version run all tests in an environment made for it.
The same command goes on from where it was stopped. Exit code 1 where a test failed.

[bold]Examples[/bold]

[cyan]python -m tools capabilities[/cyan]  every setting, environments last

[cyan]python -m tools capabilities --set 'ATen AVX2' --set '8 threads' tests/audio_metrics[/cyan]
"""


@app.command(name="capabilities", help=flowing(_CAPABILITIES_HELP))
def capabilities(
    tests: Annotated[list[str] | None, typer.Argument(help="Paths of tests.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Only this setting.")] = None,
    results: Annotated[Path, typer.Option(help="File of the lines.")] = Path("results/capabilities.jsonl"),
    workers: Annotated[int, typer.Option(min=1, help="Processes of pytest.")] = 2,
) -> None:
    """Sweep kernels and versions."""
    from tools.capabilities import sweep

    if failed := sweep(results, settings or [], workers=workers, tests=tests or []):
        print(f"tests failed: {', '.join(failed)}")
        raise typer.Exit(1)


@app.command(name="docs")
def docs(
    pages: Annotated[list[Path] | None, typer.Argument(help="Pages with markers; [dim]default: all[/dim]")] = None,
    results: Annotated[Path, typer.Option(help="Folder of results.")] = Path("results"),
) -> None:
    """Write the blocks of docs/ that results fill."""
    from tools.docs import PAGES, write_docs

    write_docs(pages or [Path("docs") / name for name in PAGES], results)


@app.command(name="h200")
def h200(
    source: Annotated[Path | None, typer.Argument(help="Folder of rows to import; [dim]default: none[/dim]")] = None,
    folder: Annotated[Path, typer.Option(help="Folder of the rows.")] = Path("results/h200"),
) -> None:
    """Import the rows of an H200 unchanged, write their tables, and draw the figure of the README from them."""
    from tools.h200 import draw_decode, import_rows, write_report

    if source is not None:
        import_rows(source, folder)
    print(draw_decode(folder), write_report(folder), sep="\n")


_GPU_HELP = """Run everything that wants a card, and pack each part as it ends: at most 8 files of 16 MB.

Tests for CUDA, the five systems at full size, trials of equal and of slower calls, the gate, sound and the attention
backends. The same command goes on with what has not ended. Exit code 1 where a part failed or was cut."""


@app.command(name="gpu", help=flowing(_GPU_HELP))
def gpu(
    out: Annotated[Path, typer.Option(help="Folder of the packed results.")] = Path("runs/gpu/packed"),
    work: Annotated[Path, typer.Option(help="Folder that the parts write into.")] = Path("runs/gpu"),
    limit_s: Annotated[float, typer.Option(min=30.0, help="Seconds for all parts.")] = 480.0,
) -> None:
    """Run the parts that need a GPU."""
    from tools.gpu import require_cuda, run_parts

    require_cuda()
    parts = run_parts(out, work, limit_s=limit_s)
    for name, part in parts.items():
        print(f"{name:10} {part['status']:10} {part['seconds']:6.1f} s")
    if any(part["status"] != "ended" for part in parts.values()):
        print("the same command goes on with what has not ended")
        raise typer.Exit(1)


@app.command(name="h200-memory")
def h200_memory(folder: Annotated[Path, typer.Option(help="Folder of the rows.")] = Path("results/h200")) -> None:
    """Print the memory that an H200 measured beside what `plan` says of the same calls."""
    from precision_eval.core.table import to_text
    from tools.h200 import memory_table

    print(to_text(memory_table(folder)))


if __name__ == "__main__":
    run_application(app, "tools")
