"""What ``precision-eval audio`` does: check two files, compare them, print the table or JSON, draw the figure.

Conventions: results go to standard output, progress to standard error and only where that is a terminal. Everything is
read block by block. What cannot be compared ends before any work with an error that names both files and the remedy;
silence and samples that are not finite are results and become flags.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_eval.cli.audio_files import Header, check_headers
from precision_eval.cli.audio_table import show
from precision_eval.core.errors import ParameterError

if TYPE_CHECKING:
    from audio_metrics import Comparison, Flag, Inspection

PLOT_FORMATS = (".png", ".svg")
_SHARED_FLAGS = frozenset({"silent", "non_finite", "full_scale", "floored", "quantised"})

Step = Callable[[str], Callable[[float], None]]


@dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of ``audio``, as given."""

    reference: Path
    estimate: Path
    noise_floor: Path | None
    as_json: bool
    plot: Path | None


def audio_command(request: Request) -> None:
    """Compare two files and show the result."""
    if request.plot is not None:
        check_plot_path(request.plot)
    headers = check_headers(request.reference, request.estimate, request.noise_floor)
    with _steps(3 + (request.plot is not None)) as step:
        comparison = _compared(request, step("comparing"))
        signals = {}
        for header in headers[:2]:
            signals[header.role] = _described(header.path, step(f"describing the {header.role}"))
        flags = all_flags(comparison, signals)
        if request.plot is not None:
            _plot(request, comparison, flags, step("drawing"))
    if request.as_json:
        content = as_dict(comparison, signals, flags, headers)
        print(json.dumps(content, indent=1, allow_nan=False))
    else:
        show(comparison, signals, flags, headers, plot=request.plot)


def check_plot_path(path: Path) -> None:
    """Refuse a path that no figure can be written to."""
    if path.suffix.lower() not in PLOT_FORMATS:
        raise ParameterError(f"--plot {path} ends in {path.suffix!r}; expected {' or '.join(PLOT_FORMATS)}")
    if path.is_dir():
        raise ParameterError(f"--plot {path} is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise ParameterError(f"--plot {path}: there is no folder {path.parent}; make it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ParameterError(f"--plot {path} cannot be written; choose another place or change its permissions")


@contextmanager
def _steps(total: int) -> Iterator[Step]:
    """Yield what begins the next step of a progress bar; nothing is shown off a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    with bar:
        task = bar.add_task("reading", total=float(total))
        begun = 0

        def step(text: str) -> Callable[[float], None]:
            nonlocal begun
            first = begun
            begun += 1
            bar.update(task, description=text, completed=float(first), refresh=True)
            return lambda fraction: bar.update(task, completed=first + fraction)

        yield step


def _compared(request: Request, on_progress: Callable[[float], None]) -> Comparison:
    from audio_metrics import compare_files

    return compare_files(request.reference, request.estimate, null_path=request.noise_floor, on_progress=on_progress)


def _described(path: Path, on_progress: Callable[[float], None]) -> Inspection:
    from audio_metrics import inspect_file

    return inspect_file(path, on_progress=on_progress)


def all_flags(comparison: Comparison, signals: dict[str, Inspection]) -> tuple[Flag, ...]:
    """Flags of the comparison and of each signal, none twice, those with a time in order before the others."""
    own = [
        dataclasses.replace(flag, signal=role, message=f"{role}: {flag.message}")
        for role, signal in signals.items()
        for flag in signal.flags
        if flag.kind not in _SHARED_FLAGS
    ]
    return tuple(sorted((*comparison.flags, *own), key=lambda flag: math.inf if flag.time_s is None else flag.time_s))


def as_dict(
    comparison: Comparison, signals: dict[str, Inspection], flags: tuple[Flag, ...], headers: list[Header]
) -> dict[str, Any]:
    """The whole result as plain data for strict JSON."""
    files = {header.role: {"path": str(header.path), "format": header.subtype} for header in headers}
    described = {role: signal.to_dict() for role, signal in signals.items()}
    for content in described.values():
        content.pop("flags")
    result = comparison.to_dict()
    result.pop("flags")
    return {
        "files": files,
        "comparison": result,
        "signals": described,
        "flags": [flag.to_dict() for flag in flags],
    }


def _plot(
    request: Request, comparison: Comparison, flags: tuple[Flag, ...], on_progress: Callable[[float], None]
) -> None:
    from precision_eval.report.figures.pair import draw_pair, save_figure, spectrograms

    assert request.plot is not None
    pictures = spectrograms(request.reference, request.estimate, on_progress=on_progress)
    names = (request.reference.name, request.estimate.name)
    save_figure(draw_pair(comparison, pictures, names=names, flags=flags), request.plot)
