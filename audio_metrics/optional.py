"""Metrics of a pair that ``compare`` measures on request, because each costs as much as the shared pass or more.

Conventions: each has its own windows over time: 1 s (multi-resolution STFT), 5 s sampled over the file (pitch), 10 s
(STOI, PESQ), 60 s (discrepancy, differences of statistics). A window without a value is NaN, a file without one too;
nothing here raises for silence. A window in which the estimate has nothing to judge and the reference has is infinitely
bad, and the file has no value. With a stop time, aligned metrics see the signals up to the last whole second before
it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import numpy as np

from audio_metrics import distribution, perceptual, pitch, spectral
from audio_metrics.catalog import metric_by_name
from audio_metrics.distribution import DISCREPANCY_WINDOW_S, window_discrepancies
from audio_metrics.errors import AudioParameterError
from audio_metrics.frames import WINDOW_S, FrameGrid
from audio_metrics.longform import Series, Summary, mean_of_windows, summarise
from audio_metrics.signal import FirstPart, Source


def part_of(on_progress: Callable[[float], None] | None, start: float, share: float) -> Callable[[float], None]:
    """A report for one part of the work: its fractions 0 to 1 become `start` to ``start + share`` of the whole."""

    def report(fraction: float) -> None:
        if on_progress is not None:
            on_progress(min(1.0, start + share * fraction))

    return report


Measured = dict[str, tuple[Series, float]]
"""Per metric, its series and its value for the whole file."""

_STATISTICS = ("mel_mean_difference_db", "mel_spread_difference_db")

OPTIONAL = (
    "multi_resolution_stft_distance",
    *pitch.PITCH_METRICS,
    *perceptual.SCORERS,
    "maximum_mean_discrepancy",
    *_STATISTICS,
)
"""Names that ``compare(metrics=...)`` takes."""


def check_names(names: Collection[str]) -> tuple[str, ...]:
    """The names in the order of :data:`OPTIONAL`, each once."""
    if isinstance(names, str):
        raise AudioParameterError(f"metrics is the string {names!r}; expected a collection of names, as ({names!r},)")
    for name in names:
        if name not in OPTIONAL:
            raise AudioParameterError(f"unknown metric {name!r} to measure besides; known: {', '.join(OPTIONAL)}")
    return tuple(name for name in OPTIONAL if name in names)


def _multi_resolution(pair: tuple[Source, Source], names: tuple[str, ...], floor: float) -> Measured:
    sums = spectral.resolution_sums(*pair, floor=floor)
    values = sums.distance()[: FrameGrid(pair[0].sample_rate_hz, pair[0].n_samples).n_windows]
    return {names[0]: (Series(np.arange(len(values)) * WINDOW_S, values), sums.pooled())}


def _pitch(pair: tuple[Source, Source], names: tuple[str, ...], floor: float) -> Measured:
    time_s, errors = pitch.sampled_pitch_errors(*pair)
    whole = pitch.PitchErrors.pooled([part for part in errors if part is not None])
    return {
        name: (
            Series(time_s, np.array([float("nan") if part is None else part.value(name) for part in errors])),
            whole.value(name),
        )
        for name in names
    }


def _segments(pair: tuple[Source, Source], names: tuple[str, ...], floor: float) -> Measured:
    time_s, scores = perceptual.segment_scores(*pair, names[0])
    return {names[0]: (Series(time_s, scores), mean_of_windows(scores))}


def _discrepancy(pair: tuple[Source, Source], names: tuple[str, ...], floor: float) -> Measured:
    return {names[0]: _by_window(window_discrepancies(*pair, floor=floor), DISCREPANCY_WINDOW_S)}


def _differences(pair: tuple[Source, Source], names: tuple[str, ...], floor: float) -> Measured:
    both = distribution.differences_of(*(distribution.window_statistics(source, floor=floor) for source in pair))
    return {name: _by_window(both[_STATISTICS.index(name)], distribution.STATISTICS_WINDOW_S) for name in names}


def _by_window(values: np.ndarray, window_s: float) -> tuple[Series, float]:
    return Series(np.arange(len(values)) * window_s, values), mean_of_windows(values)


_Pass = Callable[[tuple[Source, Source], tuple[str, ...], float], Measured]
_PASSES: tuple[tuple[tuple[str, ...], _Pass, float], ...] = (
    (("multi_resolution_stft_distance",), _multi_resolution, WINDOW_S),
    (pitch.PITCH_METRICS, _pitch, pitch.PITCH_WINDOW_S),
    *(((name,), _segments, perceptual.SEGMENT_S) for name in perceptual.SCORERS),
    (("maximum_mean_discrepancy",), _discrepancy, DISCREPANCY_WINDOW_S),
    (_STATISTICS, _differences, distribution.STATISTICS_WINDOW_S),
)
"""Metrics that share a pass, the pass, and the length of its windows in seconds."""


def _wanted(names: Collection[str]) -> Iterable[tuple[tuple[str, ...], _Pass, float]]:
    for group, measure, window_s in _PASSES:
        asked = tuple(name for name in group if name in names)
        if asked:
            yield asked, measure, window_s


def n_passes(names: Collection[str]) -> int:
    """How many passes over the pair the names need."""
    return len(list(_wanted(names)))


def optional_summaries(
    pair: tuple[Source, Source],
    names: Collection[str],
    *,
    floor: float,
    stop_s: float,
    failed: np.ndarray,
    silent: bool,
    on_progress: Callable[[float], None],
) -> dict[str, Summary]:
    """Measure the named metrics of an aligned pair, of which some 1 s windows have `failed` or one side is `silent`."""
    summaries = {}
    total = n_passes(names)
    failed_s = np.flatnonzero(failed) * WINDOW_S
    for index, (asked, measure, window_s) in enumerate(_wanted(names)):
        measured = _measured(pair, asked, measure, floor=floor, stop_s=stop_s)
        for name, (series, whole) in measured.items():
            metric = metric_by_name(name)
            assert metric.direction is not None  # a summarised metric has a better and a worse
            counted_s = failed_s[failed_s + WINDOW_S <= stop_s] if metric.aligned and stop_s == stop_s else failed_s
            starts = series.time_s[:, None]
            hit = np.asarray(((counted_s + WINDOW_S > starts) & (counted_s < starts + window_s)).any(axis=1))
            whole = float("nan") if silent or len(counted_s) else whole
            summaries[name] = summarise(series, direction=metric.direction, whole_file=whole, failed=hit)
        part_of(on_progress, index / total, 1.0 / total)(1.0)
    return summaries


def _measured(
    pair: tuple[Source, Source], names: tuple[str, ...], measure: _Pass, *, floor: float, stop_s: float
) -> Measured:
    if not metric_by_name(names[0]).aligned or np.isnan(stop_s):
        return measure(pair, names, floor)
    whole_s = int(stop_s)  # windows of 1 s that end by then
    if whole_s == 0:
        return {name: (Series(np.zeros(0), np.zeros(0)), float("nan")) for name in names}
    n_samples = whole_s * pair[0].sample_rate_hz
    return measure((FirstPart(pair[0], n_samples), FirstPart(pair[1], n_samples)), names, floor)
