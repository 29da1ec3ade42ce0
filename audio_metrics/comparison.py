"""Comparison of an estimate with an aligned reference, over time.

Conventions: one pass over both signals in blocks, in the dtype of the signals, sums in float64; memory grows by some
300 bytes per second of audio. Values are per 1 s window. A window in which *both* signals are exactly zero has no value
(NaN) and is left out of file means with all its frames; where the estimate alone is, it is measured like any other
failure. A window with a sample that is not finite has no value, counts as infinitely bad, and leaves the file without
whole figures; so does a file that is exactly zero throughout. SI-SDR does not remove means. Metrics that cost more than
the pass itself (:data:`OPTIONAL`) are measured on request, each in a pass of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from audio_metrics import cepstral, spectral
from audio_metrics.catalog import metric_by_name
from audio_metrics.detectors import Clipping, Dropouts
from audio_metrics.distribution import frechet_distance_of
from audio_metrics.errors import ParameterError
from audio_metrics.flags import SIGNALS, Flag, alignment_flags, news_of, pair_flags, storage_flags
from audio_metrics.frames import BLOCK_WINDOWS, FLOOR, GATE_DB, WINDOW_S, Block, FrameGrid, Wanted, blocks
from audio_metrics.inspection import DETECTED, Inspector, kernels_of
from audio_metrics.lag import aligned_by_lag, measure_lag
from audio_metrics.longform import Series, Summary, diverged, summarise
from audio_metrics.optional import OPTIONAL, check_names, n_passes, optional_summaries
from audio_metrics.progress import part_of
from audio_metrics.results import DISTANCES, SUMMARISED, Comparison, ratio_to_null
from audio_metrics.signal import FileSource, FloatName, Source, check_alike, checked_pair
from audio_metrics.table import HalfWindowTable, TableBuilder, by_window
from audio_metrics.waveform import ProjectionSums, projection_sums

__all__ = ["DISTANCES", "OPTIONAL", "SUMMARISED", "Comparison", "compare", "compare_files", "ratio_to_null"]

Align = Literal["lag"]

_FRAME_METRICS = {
    "log_spectral_distance_db": spectral.frame_log_spectral_distance_db,
    "log_magnitude_l1_db": spectral.frame_log_magnitude_l1_db,
    "mel_mcd_db": cepstral.frame_mel_mcd_db,
    "level_error_db": cepstral.frame_level_error_db,
}
_POOLED_KERNELS = {
    "magnitude_error": spectral.frame_magnitude_error,
    "reference_energy": spectral.frame_reference_energy,
}


def compare(
    reference: np.ndarray,
    estimate: np.ndarray,
    *,
    sample_rate_hz: int,
    metrics: Collection[str] = (),
    floor: float = FLOOR,
    stop_at_divergence: bool = False,
    block_windows: int = BLOCK_WINDOWS,
    align: Align | None = None,
    inspect_each: bool = False,
) -> Comparison:
    """Compare an estimate with its aligned reference.

    Parameters
    ----------
    reference, estimate : np.ndarray, shape (n_samples,)
        Mono, float32 or float64 (both the same; the transform runs in it), same length, full scale = 1.0.
    sample_rate_hz : int
        At least 8000.
    metrics : collection of str
        What to measure besides, from :data:`~audio_metrics.optional.OPTIONAL`; with the ``perceptual`` extra also
        ``"stoi"`` and ``"pesq"``.
    floor : float
        Smallest power that a logarithm sees.
    stop_at_divergence : bool
        Leave out every window that ends after `t_div_s` from the aligned summaries. For recordings that are not
        aligned frame by frame throughout.
    block_windows : int
        Windows read at once; changes no result.
    align : {None, "lag"}
        ``"lag"`` takes the lag out first, to a fraction of a sample (windowed sinc, 257 taps), and compares what both
        have in common. Nothing is moved unless it is asked for.
    inspect_each : bool
        Inspect each signal too, in the same pass: the result has `signals`, and flags jumps, repeats and loops.

    Returns
    -------
    Comparison

    Raises
    ------
    ParameterError
        The signals cannot be compared, or are shorter than one frame; an unknown name in `metrics`.
    BackendError
        A metric asked for needs a library that is not installed.
    """
    pair = checked_pair(reference, estimate, sample_rate_hz=sample_rate_hz, aligned=True)
    options = _Options(check_names(metrics), floor, stop_at_divergence, block_windows, align, inspect_each)
    return _compare(pair, options, on_progress=None)


def compare_files(
    reference: Path | str,
    estimate: Path | str,
    *,
    null_path: Path | str | None = None,
    metrics: Collection[str] = (),
    on_progress: Callable[[float], None] | None = None,
    dtype: FloatName = "float32",
    floor: float = FLOOR,
    stop_at_divergence: bool = False,
    block_windows: int = BLOCK_WINDOWS,
    align: Align | None = None,
    inspect_each: bool = False,
    on_block: Callable[[FrameGrid, Block], None] | None = None,
) -> Comparison:
    """Compare two mono audio files without holding them in memory; otherwise as :func:`compare`.

    Parameters
    ----------
    reference, estimate : Path or str
        Any format that libsndfile reads; same sample rate and length.
    null_path : Path or str, optional
        A second rendering of the reference (another noise seed), compared with the reference as the estimate is, so
        that the result has a `ratio_to_null`.
    dtype : {"float32", "float64"}
        What samples are read as.
    metrics, floor, stop_at_divergence, block_windows, align, inspect_each
        See :func:`compare`.
    on_block : callable, optional
        Called with the grid and each block of the pair that is compared, as for a picture of the spectra.
    on_progress : callable, optional
        Called with the fraction done, 0 to 1, rising, over all passes.

    Raises
    ------
    SignalFileError
        A file is missing, unreadable or torn.
    ParameterError
        See :func:`compare`.
    """
    with ExitStack() as stack:
        first = stack.enter_context(FileSource(reference, dtype=dtype, name="reference"))
        second = stack.enter_context(FileSource(estimate, dtype=dtype, name="estimate"))
        check_alike(first, second, aligned=True)
        names = check_names(metrics)
        options = _Options(names, floor, stop_at_divergence, block_windows, align, inspect_each, on_block)
        share = 1.0 if null_path is None else 0.5
        result = _compare((first, second), options, on_progress=part_of(on_progress, 0.0, share))
        result = dataclasses.replace(result, flags=result.flags + storage_flags((first, second)))
        if null_path is None:
            return result
        null = stack.enter_context(FileSource(null_path, dtype=dtype, name="null"))
        check_alike(first, null, aligned=True)
        options = dataclasses.replace(options, inspect_each=False, on_block=None)
        null_result = _compare((first, null), options, on_progress=part_of(on_progress, share, share))
        null_result = dataclasses.replace(null_result, flags=null_result.flags + storage_flags([null]))
        return result.against_null(null_result)


@dataclass(frozen=True)
class _Options:
    metrics: tuple[str, ...]
    floor: float
    stop_at_divergence: bool
    block_windows: int
    align: Align | None
    inspect_each: bool
    on_block: Callable[[FrameGrid, Block], None] | None = None

    def __post_init__(self) -> None:
        if self.align not in (None, "lag"):
            raise ParameterError(f"align is {self.align!r}; expected None or 'lag'")


def _sample_sums(block: Block) -> dict[str, np.ndarray]:
    reference, estimate = block.samples
    return dict(vars(projection_sums(reference, estimate, block.half_starts, workspace=block.workspace)))


def _compare(
    pair: tuple[Source, Source], options: _Options, *, on_progress: Callable[[float], None] | None
) -> Comparison:
    moved = 0.0
    if options.align == "lag":
        pair, moved = aligned_by_lag(*pair)
    share = 1.0 / (1 + n_passes(options.metrics))
    observers = _Observers(FrameGrid(pair[0].sample_rate_hz, pair[0].n_samples), inspect_each=options.inspect_each)
    run = blocks(pair, floor=options.floor, block_windows=options.block_windows, wanted=observers.wanted)
    for grid, block in run:
        observers.add(block)
        if options.on_block is not None:
            options.on_block(grid, block)
        if on_progress is not None:
            on_progress(share * block.stop_window / grid.n_started_windows)
    table = observers.builder.table
    signals = {inspector.name: inspector.result() for inspector in observers.inspectors}
    grid = table.grid
    t_div_s = _divergence_s(table)
    window_ends_s = (1 + np.arange(grid.n_started_windows)) * grid.window_samples / grid.sample_rate_hz
    stop = options.stop_at_divergence
    beyond = window_ends_s > t_div_s if stop else np.zeros(grid.n_started_windows, bool)
    lag = measure_lag(*pair)
    ltas, frechet = _distances(table, floor=options.floor)
    extras = optional_summaries(
        pair,
        options.metrics,
        floor=options.floor,
        stop_s=t_div_s if stop else float("nan"),
        failed=table.failed_windows,
        silent=bool(table.silent_windows.all(axis=1).any()),
        on_progress=part_of(on_progress, share, 1.0 - share),
    )
    n_bins = grid.n_frames * grid.n_bins
    return Comparison(
        sample_rate_hz=grid.sample_rate_hz,
        n_samples=grid.n_samples,
        n_frames=grid.n_frames,
        dropped_samples=grid.dropped_samples,
        duration_s=grid.n_samples / grid.sample_rate_hz,
        settings=_settings(grid, options, dtype=pair[0].dtype.name),
        summaries=_summaries(table, beyond) | extras,
        ltas_distance_db=ltas,
        frechet_distance=frechet,
        t_div_s=t_div_s,
        lag_s=lag.lag_s,
        lag_correlation=lag.correlation,
        fine_lag_s=lag.fine_lag_s,
        lag_cost_db=lag.cost_db,
        active_fraction=_quotient(float(table.active_frames.sum()), float(table.frames.sum())),
        floored_fraction={name: int(count) / n_bins for name, count in zip(SIGNALS, table.floored_bins, strict=True)},
        flags=(
            *pair_flags(table, lag),
            *alignment_flags(moved, grid.sample_rate_hz),
            *observers.flags(),
            *news_of([flag for signal in signals.values() for flag in signal.flags if flag.kind in DETECTED]),
        ),
        signals=signals or None,
    )


class _Observers:
    """Everything that takes the blocks of the pass."""

    def __init__(self, grid: FrameGrid, *, inspect_each: bool) -> None:
        self._rate = grid.sample_rate_hz
        self.builder = TableBuilder(
            grid, 2, summed=_FRAME_METRICS, pooled=_POOLED_KERNELS, halved=("mel_mcd_db",), moments=True
        )
        self._clipping = [Clipping() for _ in SIGNALS]
        self._dropouts = Dropouts(grid)
        self.inspectors = [Inspector(grid, name) for name in SIGNALS] if inspect_each else []
        kernels = {**_FRAME_METRICS, **_POOLED_KERNELS}
        attributes = ("bin_sum", "floored_bins", "cepstra", "power_sum")
        if inspect_each:
            kernels |= kernels_of(0) | kernels_of(1)
            attributes += ("log_bands",)
        self.wanted = Wanted(kernels=kernels, attributes=attributes)

    def add(self, block: Block) -> None:
        self.builder.add(block, _sample_sums(block))
        self._dropouts.add(block)
        for index, clipping in enumerate(self._clipping):
            clipping.add(block, index)
        for index, inspector in enumerate(self.inspectors):
            inspector.add(block.only(index))

    def flags(self) -> tuple[Flag, ...]:
        clipped = [
            flag
            for name, clipping in zip(SIGNALS, self._clipping, strict=True)
            for flag in clipping.flags(name, self._rate)
        ]
        return (*self._dropouts.flags(self._rate), *news_of(clipped))


def _settings(grid: FrameGrid, options: _Options, *, dtype: str) -> dict[str, Any]:
    return {
        "sample_rate_hz": grid.sample_rate_hz,
        "dtype": dtype,
        "frame_samples": grid.frame_samples,
        "hop_samples": grid.hop_samples,
        "window_s": WINDOW_S,
        "floor": options.floor,
        "gate_db": GATE_DB,
        "zero_mean": False,
        "align": options.align,
        "stop_at_divergence": options.stop_at_divergence,
        "metrics": list(options.metrics),
    }


def _quotient(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0.0 else float("nan")


def _quotients(numerator: np.ndarray, denominator: np.ndarray, *, where: np.ndarray | bool = True) -> np.ndarray:
    none = np.full(numerator.shape, np.nan)
    return np.divide(numerator, denominator, out=none, where=(denominator > 0.0) & where)


def _projections(table: HalfWindowTable) -> ProjectionSums:
    names = [entry.name for entry in dataclasses.fields(ProjectionSums)]
    return ProjectionSums(**{name: table.samples[name] for name in names})


def _divergence_s(table: HalfWindowTable) -> float:
    grid = table.grid
    mcd_db = _quotients(table.half_sums["mel_mcd_db"], table.frames)
    mcd_db[table.nonzero[0] & ~table.nonzero[1]] = np.inf  # a collapse to digital silence
    snr_db = np.where(table.bad_samples.any(axis=0), np.nan, _projections(table).snr_db)
    other_sound = diverged(mcd_db, snr_db, _quotients(table.active_frames, table.frames))
    halves = np.flatnonzero(other_sound | ((table.bad_samples[1] > 0) & (table.bad_samples[0] == 0)))
    if len(halves) == 0:
        return float("nan")
    return float(grid.half_starts(0, grid.n_started_windows)[halves[0]]) / grid.sample_rate_hz


def _distances(table: HalfWindowTable, *, floor: float) -> tuple[float, float]:
    first, second = table.moments
    if min(first.n_frames, second.n_frames) < 2 or not table.has_whole:
        return float("nan"), float("nan")
    ltas = spectral.ltas_distance_of(first.mean_power, second.mean_power, floor=floor)
    return ltas, frechet_distance_of(first, second)


def _summaries(table: HalfWindowTable, beyond: np.ndarray) -> dict[str, Summary]:
    used = ~(table.silent_windows.all(axis=0) | table.silent_windows.all(axis=1).any() | beyond)
    summaries = {}
    for name in _FRAME_METRICS:
        active = _frame_summary(table, name, table.active_sums[name], table.active_frames, used, None)
        summaries[name] = _frame_summary(table, name, table.sums[name], table.frames, used, active)
    error, energy = table.sums["magnitude_error"], table.sums["reference_energy"]
    convergence = np.sqrt(_quotients(error, energy, where=used))
    whole = float(np.sqrt(_quotient(float(error[used].sum()), float(energy[used].sum()))))
    summaries["spectral_convergence"] = _summary(table, "spectral_convergence", convergence, whole, used)
    return summaries | _ratio_summaries(table, used, ~beyond)


def _frame_summary(
    table: HalfWindowTable, name: str, sums: np.ndarray, frames: np.ndarray, used: np.ndarray, active: Summary | None
) -> Summary:
    window_frames = by_window(frames).sum(axis=-1)
    whole = _quotient(float(sums[used].sum()), float(window_frames[used].sum()))
    values = _quotients(sums, window_frames, where=used)
    return _summary(table, name, values, whole, used, mean_is_whole=True, active=active)


def _ratio_summaries(table: HalfWindowTable, used: np.ndarray, covered: np.ndarray) -> dict[str, Summary]:
    halves = ProjectionSums(**{name: by_window(column) for name, column in vars(_projections(table)).items()})
    windows = halves.pooled()
    whole = ProjectionSums(**{name: column[covered] for name, column in vars(windows).items()}).pooled()
    nothing_left = (windows.reference > 0.0) & (windows.estimate == 0.0)  # no part of the reference is in the estimate
    summaries = {}
    for name, values, value in (
        ("snr_db", windows.snr_db, whole.snr_db),
        ("si_sdr_db", np.where(nothing_left, -np.inf, windows.si_sdr_db), whole.si_sdr_db),
    ):
        summaries[name] = _summary(table, name, np.where(used, values, np.nan), float(value), used)
    return summaries


def _summary(
    table: HalfWindowTable,
    name: str,
    values: np.ndarray,
    whole: float,
    used: np.ndarray,
    *,
    mean_is_whole: bool = False,
    active: Summary | None = None,
) -> Summary:
    direction = metric_by_name(name).direction
    assert direction is not None  # a summarised metric has a better and a worse
    failed = table.failed_windows & used
    if failed.any() or table.silent_windows.all(axis=1).any():
        whole = float("nan")
    n_windows = table.grid.n_windows
    return summarise(
        Series(table.window_times_s, values[:n_windows]),
        direction=direction,
        whole_file=whole,
        mean=whole if mean_is_whole else None,
        active=active,
        failed=failed[:n_windows],
    )
