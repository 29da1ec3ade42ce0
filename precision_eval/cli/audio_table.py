"""The files and the text of ``precision-eval audio``. What makes files a pair is checked from their headers alone.

A dash where there is no value; ↓ marks what is closer when lower, ↑ when higher. The slope is per minute with its 95 %
interval; thirds are means over the first and the last third of the windows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from audio_metrics import METRICS, metric_by_name
from audio_metrics.errors import AudioParameterError
from audio_metrics.flags import clock
from audio_metrics.frames import FrameGrid
from audio_metrics.signal import FileSource
from precision_eval.core.formatting import MISSING, significant, title_of
from precision_eval.core.table import Table, make_table, print_lines, print_table

if TYPE_CHECKING:
    from audio_metrics import AudioComparison, Flag, Inspection, Summary

_ARROWS = {"lower": "↓", "higher": "↑", None: ""}
_PLAIN_WIDTH = 130


Headers = Mapping[str, Mapping[str, str]]
"""Role of each file to its path and format."""

AUDIO_SUFFIXES = frozenset({".wav", ".flac", ".ogg", ".opus", ".mp3", ".aif", ".aiff", ".w64", ".rf64", ".au", ".caf"})


def pairs_of(reference: Path, estimate: Path) -> tuple[list[tuple[str, Path, Path]], list[str]]:
    """Files of two folders that bear one name, whatever their suffix, and the names that only one folder has."""
    folders = []
    for folder in (reference, estimate):
        files: dict[str, Path] = {}
        for path in sorted(path for path in folder.rglob("*") if path.suffix.lower() in AUDIO_SUFFIXES):
            name = str(path.relative_to(folder).with_suffix(""))
            if name in files:
                raise AudioParameterError(
                    f"{files[name]} and {path} have the same name; give recordings with different names"
                )
            files[name] = path
        folders.append(files)
    first, second = folders
    pairs = [(name, first[name], second[name]) for name in first if name in second]
    if not pairs:
        raise AudioParameterError(
            f"no file name occurs in both {reference} and {estimate}; recordings are paired by name"
        )
    return pairs, sorted(str(files[name]) for files in folders for name in set(files) - {pair[0] for pair in pairs})


def headers_of(files: Mapping[str, Path | None], *, mono: bool) -> Headers:
    """Return path and format of each file; what cannot be read is refused here, before any work."""
    headers = {}
    with ExitStack() as stack:
        for role, path in files.items():
            if path is None:
                continue
            source = stack.enter_context(FileSource(path, dtype="float32", name=role, mono=mono))
            FrameGrid(source.sample_rate_hz, source.n_samples)
            headers[role] = {"path": str(path), "format": source.subtype}
    return headers


def _header_lines(headers: Headers) -> list[str]:
    return [f"{role}: {header['path']} ({header['format']})" for role, header in headers.items()]


def print_comparison(comparison: AudioComparison, headers: Headers, *, plot: Path | None) -> None:
    assert comparison.signals is not None  # the command inspects both
    console = _console()
    print_lines([comparison.headline, *_header_lines(headers)], console, soft_wrap=True)
    console.print(
        f"{clock(comparison.duration_s)} at {comparison.sample_rate_hz} Hz, aligned; windows of 1 s; "
        f"{100 * comparison.active_fraction:.0f} % of the frames active"
    )
    tables = [_levels(comparison), _courses(comparison), _whole(comparison), _signals(comparison.signals)]
    for table in tables:
        print_table(table, console)
    print_lines(_notes(comparison), console, soft_wrap=True)
    if plot is not None:
        print_lines([f"figure: {plot}"], console, soft_wrap=True)


def print_inspection(inspection: Inspection, headers: Headers) -> None:
    console = _console()
    print_lines([inspection.headline, *_header_lines(headers)], console, soft_wrap=True)
    print_table(_signals({"signal": inspection}), console)
    print_lines(map(_sentence, inspection.flags), console, soft_wrap=True)


def print_folder(results: Sequence[tuple[str, AudioComparison | str]], alone: Sequence[str]) -> None:
    """Print one line for every pair of two folders, the worst first, and what had no partner."""
    console = _console()
    compared = [(name, result) for name, result in results if not isinstance(result, str)]
    failed = len(results) - len(compared) + sum(result.failed for _, result in compared)
    doubtful = sum(result.headline.startswith(("WARNING", "DIFFERS")) for _, result in compared)
    head = f"{len(results)} pairs: {failed} failed, {doubtful} doubtful, {len(alone)} files without a partner"
    print_lines([head], console, soft_wrap=True)
    rows = [[name, *[MISSING] * 5, result] for name, result in results if isinstance(result, str)]
    for name, result in sorted(compared, key=lambda pair: _badness(pair[1])):
        distances = [result.summaries[key] for key in ("log_spectral_distance_db", "mel_mcd_db", "si_sdr_db")]
        left_out = f"{distances[0].n_undefined} of {distances[0].n_windows}"
        figures = [significant(summary.whole_file) for summary in distances]
        rows.append([name, *figures, significant(distances[0].worst), left_out, result.headline.split(": finite")[0]])
    columns = ["pair", "LSD, dB", "mel MCD, dB", "SI-SDR, dB", "worst LSD", "left out", "first line"]
    print_table(make_table(columns, rows, title="worst first", align="lrrrrrl"), console)
    print_lines([f"! no partner: {name}" for name in alone], console, soft_wrap=True)


def _badness(comparison: AudioComparison) -> tuple[bool, bool, float]:
    """Sorts failures before doubts before large distances."""
    distance_db = comparison.summaries["log_spectral_distance_db"].whole_file
    doubtful = comparison.headline.startswith(("WARNING", "DIFFERS"))
    return not comparison.failed, not doubtful, -(math.inf if math.isnan(distance_db) else distance_db)


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PLAIN_WIDTH)


def _heading(name: str) -> str:
    """The title with an arrow that says which way is closer."""
    return f"{title_of(name)} {_ARROWS[metric_by_name(name).direction]}".strip()


def _levels(comparison: AudioComparison) -> Table:
    ratios = comparison.ratio_to_null
    columns = ["metric", "unit", "whole", "mean", "median", "p95", "worst", "at", "left out"]
    rows = []
    for name, summary in comparison.summaries.items():
        values = (summary.whole_file, summary.mean, summary.median, summary.p95, summary.worst)
        left_out = f"{summary.n_undefined} of {summary.n_windows}"
        row = [_heading(name), metric_by_name(name).unit, *map(significant, values), worst_at(summary), left_out]
        rows.append(row if ratios is None else [*row, significant(ratios.get(name, math.nan))])
    columns += [] if ratios is None else ["× noise floor"]
    return make_table(columns, rows, title="per second", align="ll" + "r" * (len(columns) - 2))


def _courses(comparison: AudioComparison) -> Table:
    rows = []
    for name, summary in comparison.summaries.items():
        slope = MISSING
        if not math.isnan(summary.slope_per_min):
            low, high = significant(summary.slope_low), significant(summary.slope_high)
            slope = f"{significant(summary.slope_per_min)} [{low}, {high}]"
        thirds = [significant(value) for value in (summary.first_third, summary.last_third)]
        rows.append([_heading(name), metric_by_name(name).unit, slope, *thirds])
    columns = ["metric", "unit", "slope/min [95 %]", "first third", "last third"]
    return make_table(columns, rows, title="course", align="llrrr")


def worst_at(summary: Summary) -> str:
    """Start of the worst window as a clock; a dash where there is none or where every window is as bad."""
    values = summary.series.value
    windows = np.flatnonzero(values == summary.worst)
    defined = values[~np.isnan(values)]
    if len(windows) == 0 or (len(defined) > 1 and np.all(defined == defined[0])):
        return MISSING
    return clock(float(summary.series.time_s[windows[0]]))


def _whole(comparison: AudioComparison) -> Table:
    ratios = comparison.ratio_to_null
    rows = []
    for metric in METRICS:
        value = getattr(comparison, metric.name, None)
        if isinstance(value, float):
            ratio = "" if ratios is None or metric.name not in ratios else significant(ratios[metric.name])
            rows.append([_heading(metric.name), metric.unit, significant(value), ratio])
    never = math.isnan(comparison.parted_s)
    rows.append(["another sound from (t_div)", "s", "never" if never else significant(comparison.parted_s), ""])
    columns = ["metric", "unit", "value", "× noise floor"]
    if ratios is None:
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return make_table(columns, rows, title="whole file", align="llrr"[: len(columns)])


def _signals(signals: dict[str, Inspection]) -> Table:
    rows = []
    for metric in METRICS:
        values = [getattr(signal, metric.name, None) for signal in signals.values()]
        if metric.n_signals == 1 and all(isinstance(value, float) for value in values):
            rows.append([title_of(metric.name), metric.unit, *map(significant, values)])
    columns = ["metric", "unit", *signals]
    return make_table(columns, rows, title="each signal alone", align="ll" + "r" * len(signals))


def _sentence(flag: Flag) -> str:
    when = "" if flag.time_s is None else f" First at {clock(flag.time_s)}."
    return f"! {flag.message[:1].upper()}{flag.message[1:]}.{when}"


def _notes(comparison: AudioComparison) -> list[str]:
    """Flags as sentences, those with a time in order before the others."""
    flags = sorted(comparison.flags, key=lambda flag: math.inf if flag.time_s is None else flag.time_s)
    lines = [_sentence(flag) for flag in flags]
    equal = [
        title_of(name) for name, summary in comparison.summaries.items() if np.isposinf(summary.series.value).any()
    ]
    if equal:
        lines.append(f"! Some windows are equal bit for bit: {', '.join(equal)} is infinite there.")
    return lines
