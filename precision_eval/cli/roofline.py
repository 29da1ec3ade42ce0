"""The command ``roofline``: what a machine's peaks say each fix should cost, beside what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from precision_eval.cli import options
from precision_eval.core.environment import collect, environment_sha
from precision_eval.core.errors import ParameterError
from precision_eval.core.files import read_json, to_json, write_json
from precision_eval.core.table import print_lines, print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from precision_eval.measure.peaks import Peaks
    from precision_eval.results.model import Group

HELP = """\
A call's bytes and FLOPs stand in its trace. With the peaks of the machine they give the time that each fix should
take, as a ratio to full_float32's. Peaks are measured once, in some 15 s, on the machine of the run, and kept beside
it; those of a GPU (t4, a10g, a100, h100 and h200) are published ones, and what comes of them is a prediction.

[bold]Examples[/bold]

[cyan]precision-eval roofline runs/first[/cyan]  beside what was measured

[cyan]precision-eval roofline runs/first --device t4[/cyan]  a prediction for a GPU that is not here
"""

PEAKS_NAME = "peaks.json"


def roofline(
    run_dir: options.RunFolder,
    device: Annotated[
        str | None, typer.Option(help="t4, a10g, a100, h100 or h200; [dim]default: the run's own[/dim]")
    ] = None,
    work: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Take the work of the same cells from another run's traces.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Predict and print."""
    from precision_eval.results.reading import load_run

    run = load_run(run_dir)
    if device is None:
        peaks = peaks_of_run(run_dir, run.environment, threads={group.threads for group in run.groups})
    else:
        from precision_eval.measure.peaks import published_peaks

        peaks = published_peaks(device)
    counted = () if work is None else load_run(work).groups
    show(run.groups, peaks, as_json=as_json, counted=counted, here=device is None)


def show(
    groups: Sequence[Group], peaks: Peaks, *, as_json: bool, counted: Sequence[Group] = (), here: bool = False
) -> None:
    """Print predictions for groups, beside what was measured `here`."""
    from precision_eval.report.roofline import correlation_line, peaks_lines, prediction_table, reason_lines
    from precision_eval.results.roofline import correlations, predicted_groups

    predicted = predicted_groups(groups, peaks, counted=counted, here=here)
    if not predicted:
        raise ParameterError(
            "no trace here holds the work of a call: measure --measure trace again, eager, with full_float32 and a fix"
        )
    found = correlations(predicted) if here else None
    if as_json:
        content = {"peaks": peaks.to_dict(), "groups": [group.to_dict() for group in predicted], "correlation": found}
        print(to_json(content, what="the prediction", indent=1))
        return
    console = Console(emoji=False)
    for group in predicted:
        print_table(prediction_table(group, peaks), console, compact=True)
        print_lines(reason_lines(group), console, soft_wrap=True)
    print_lines(
        [*peaks_lines(peaks, here=here), *([correlation_line(found)] if found else [])], console, soft_wrap=True
    )


def peaks_of_run(run_dir: Path, environment: Any, *, threads: set[int]) -> Peaks:
    """Return a GPU's published peaks, or those kept beside a run, measured where this is its machine and none are."""
    from precision_eval.measure.peaks import measure_peaks, peaks_of, peaks_of_gpu
    from precision_eval.results.machines import facts_of

    if gpu := (environment.get("device") or {}).get("model"):
        return peaks_of_gpu(gpu)
    path, there = run_dir / PEAKS_NAME, facts_of(environment)
    if path.is_file():
        content = read_json(path)
        stored = content if isinstance(content, dict) else {}
        if stored.get("machine") != there:
            raise ParameterError(f"{path} is of another machine than the run; remove it to measure them again")
        return peaks_of(stored.get("peaks"), where=str(path))
    here = collect("cpu")
    if facts_of(here) != there or len(threads) != 1:
        name = there.get("hardware", "its machine")
        raise ParameterError(
            f"the peaks of {name} ({', '.join(there.values())}) can be measured only there, at one count of threads; "
            "run this command there, or give --device t4"
        )
    peaks = measure_peaks(there.get("hardware", "this machine"), threads=min(threads))
    content = {"machine": there, "environment": here, "sha256": environment_sha(here), "peaks": peaks.to_dict()}
    write_json(path, content)
    return peaks
