"""Comparison of an estimate with an aligned reference, over time.

Conventions: one pass over both signals in blocks, in the dtype of the signals, sums in float64; memory grows by some
300 bytes per second of audio. Values are per 1 s window. A window in which *both* signals are exactly zero has no value
(NaN) and is left out of file means with all its frames; where the estimate alone is, it is measured like any other
failure. A window with a sample that is not finite has no value, counts as infinitely bad, and leaves the file without
whole figures; so does a file that is exactly zero throughout. SI-SDR does not remove means.
"""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from audio_metrics import spectral
from audio_metrics.catalog import metric_by_name
from audio_metrics.changes import changes_of, is_relabelled, wraps_in_time
from audio_metrics.detectors import Clipping, Dropouts
from audio_metrics.distribution import frechet_distance_of
from audio_metrics.errors import AudioParameterError
from audio_metrics.flags import (
    CHANGES,
    SIGNALS,
    SURE_CORRELATION,
    Flag,
    alignment_flags,
    clock,
    headline,
    json_number,
    json_numbers,
    news_of,
    pair_flags,
    storage_flags,
)
from audio_metrics.frames import BLOCK_WINDOWS, WINDOW_S, FrameBlock, FrameGrid, Wanted, blocks
from audio_metrics.inspection import DETECTED, Inspection, Inspector, kernels_of
from audio_metrics.lag import aligned_by_lag, measure_lag, overlap
from audio_metrics.longform import Series, Summary, distance_ratio, diverged, summarise
from audio_metrics.matching import LOOKED_AT_S, Match, match
from audio_metrics.signal import FileSource, FloatName, Relabelled, Resampled, Source, check_alike, checked_pair
from audio_metrics.spectra import FLOOR, GATE_DB
from audio_metrics.table import HalfWindowTable, TableBuilder, by_window
from audio_metrics.undoing import moved_or_misread, rest_of
from audio_metrics.waveform import ProjectionSums, projection_sums

# Metrics of which a comparison holds a summary and a course over time.
SUMMARISED = (
    "log_spectral_distance_db",
    "log_magnitude_l1_db",
    "spectral_convergence",
    "mel_mcd_db",
    "level_error_db",
    "snr_db",
    "si_sdr_db",
)

# Metrics of which a comparison holds one value for the whole file.
DISTANCES = ("ltas_distance_db", "frechet_distance")

#: SI-SDR and SNR (dB) below which two sounds differ: the residual holds a hundredth of the energy.
LEAST_SDR_DB = 20.0
#: Log-spectral distance (dB) above which two sounds differ, if SI-SDR is below :data:`SURE_SDR_DB` too: in soft pauses
#: a distance is large though nothing of the energy is missing.
MOST_LSD_DB = 10.0
SURE_SDR_DB = 40.0


def _far(summaries: dict[str, Summary]) -> bool:
    si_sdr_db, snr_db, lsd_db = (
        summaries[name].whole_file for name in ("si_sdr_db", "snr_db", "log_spectral_distance_db")
    )
    return si_sdr_db < LEAST_SDR_DB or snr_db < LEAST_SDR_DB or (si_sdr_db < SURE_SDR_DB and lsd_db > MOST_LSD_DB)


_SCALARS = (
    "t_div_s",
    "lag_s",
    "lag_correlation",
    "fine_lag_s",
    "lag_cost_db",
    "active_fraction",
    "duration_s",
)
_LENGTH_TOLERANCE = 0.1


@dataclass(frozen=True, kw_only=True, repr=False)
class AudioComparison:
    """What :func:`~audio_metrics.comparison.compare` found.

    Attributes
    ----------
    sample_rate_hz, n_samples, n_frames, dropped_samples : int
        `dropped_samples` after the last whole frame.
    duration_s : float
    settings : dict
        Everything that changes the figures; two comparisons with other settings are not comparable.
    summaries : dict of str to Summary
        One per name in :data:`SUMMARISED`.
    ltas_distance_db, frechet_distance : float
        Of the whole file, unaligned, without windows that are silent in both.
    t_div_s : float
        Start of the first half second in which the estimate is another sound or not finite; NaN if never.
    lag_s, lag_correlation : float
        How late the estimate is, in whole samples, and the correlation there.
    fine_lag_s, lag_cost_db : float
        The lag with its fraction of a sample, and the SI-SDR that it costs.
    active_fraction : float
        Fraction of usable frames that are active in the reference.
    floored_fraction : dict of str to float
        Fraction of bins under the floor, per signal.
    flags : tuple of Flag
    ratio_to_null : dict of str to float, or None
        See :func:`ratio_to_null`.
    signals : dict of str to Inspection, or None
        ``"reference"`` and ``"estimate"``, each by itself, where it was asked for.

    Notes
    -----
    ``print(comparison)`` gives a headline and a table of some ten lines; in a notebook it is an HTML table.
    """

    sample_rate_hz: int
    n_samples: int
    n_frames: int
    dropped_samples: int
    duration_s: float
    settings: dict[str, Any]
    summaries: dict[str, Summary]
    ltas_distance_db: float
    frechet_distance: float
    t_div_s: float
    lag_s: float
    lag_correlation: float
    fine_lag_s: float
    lag_cost_db: float
    active_fraction: float
    floored_fraction: dict[str, float]
    flags: tuple[Flag, ...]
    ratio_to_null: dict[str, float] | None = None
    signals: dict[str, Inspection] | None = None

    @property
    def failed(self) -> bool:
        """Whether a signal is not finite, or the estimate is digital silence where the reference is not."""
        return any(flag.is_failure for flag in self.flags)

    @property
    def differs(self) -> bool:
        """Whether the two are surely not the same sound.

        A change is named (:data:`~audio_metrics.flags.CHANGES`), the lengths differ though no alignment was asked for,
        SI-SDR or SNR is below :data:`LEAST_SDR_DB`, or SI-SDR below :data:`SURE_SDR_DB` with a log-spectral distance
        above :data:`MOST_LSD_DB`, of the whole file. The thresholds are conventions.
        """
        kinds = {flag.kind for flag in self.flags if flag.signal in ("estimate", "pair")}
        return bool(kinds & CHANGES) or ("length" in kinds and self.settings["align"] != "lag") or _far(self.summaries)

    @property
    def headline(self) -> str:
        """What failed, what was done to the estimate, what is doubtful, or that no fault was found; one line."""
        unknown = "what was done was not looked for" if self.signals is None else "unknown cause"
        if self.parted_s > LOOKED_AT_S:  # pieces are looked for in the first minutes
            unknown = f"the estimate is another sound from {clock(self.parted_s)}"
        near = self.summaries["si_sdr_db"].whole_file >= LEAST_SDR_DB  # soft noise in a pause of zeros is no fault
        flags = (flag for flag in self.flags if not (near and (flag.kind, flag.signal) == ("silent", "reference")))
        text = headline(flags, differs=self.differs, unknown=unknown)
        if self.failed:
            return text
        distances = {"SI-SDR": "si_sdr_db", "log-spectral distance": "log_spectral_distance_db"}
        figures = [f"{title} {self.summaries[name].whole_file:.3g} dB" for title, name in distances.items()]
        return f"{text}; {', '.join(figures)}"

    @property
    def parted_s(self) -> float:
        """`t_div_s`, or NaN where what was done to the estimate explains it: a low pass makes no other sound."""
        explained = {flag.kind for flag in self.flags} & (CHANGES - {"other", "order", "stretch"})
        return float("nan") if explained else self.t_div_s

    def against_null(self, null: AudioComparison) -> AudioComparison:
        """With :func:`ratio_to_null`, and with the flags of the null.

        Parameters
        ----------
        null : AudioComparison
            Of the same reference with another honest rendering of it.

        Raises
        ------
        AudioParameterError
            The null cannot be one, see :func:`ratio_to_null`.
        """
        ratios = ratio_to_null(self, null)
        flags = tuple(
            dataclasses.replace(flag, signal="null", message=f"null: {flag.message}")
            for flag in null.flags
            if flag.signal != "reference" and flag.kind not in ("short", "left_out")
        )
        return dataclasses.replace(self, ratio_to_null=ratios, flags=self.flags + flags)

    def _rows(self) -> list[list[str]]:
        ratio = [] if self.ratio_to_null is None else ["× null"]
        rows = [["metric", "unit", "whole", "median", "p95", "worst", "left out", *ratio]]
        for name, summary in self.summaries.items():
            figures = [f"{value:.4g}" for value in (summary.whole_file, summary.median, summary.p95, summary.worst)]
            left_out = f"{summary.n_undefined} of {summary.n_windows}"
            rows.append([name, metric_by_name(name).unit, *figures, left_out])
        for name in DISTANCES:
            rows.append([name, metric_by_name(name).unit, f"{getattr(self, name):.4g}", "", "", "", ""])
        if self.ratio_to_null is not None:
            for row in rows[1:]:
                row.append(f"{self.ratio_to_null[row[0]]:.3g}")
        return rows

    def _about(self) -> str:
        return (
            f"{clock(self.duration_s)} at {self.sample_rate_hz} Hz in windows of 1 s; "
            f"{100 * self.active_fraction:.0f} % of the frames active"
        )

    def __repr__(self) -> str:
        rows = self._rows()
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [
            "  ".join(
                cell.ljust(width) if column < 2 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        return "\n".join([self.headline, self._about(), *lines])

    def _repr_html_(self) -> str:
        head, *body = self._rows()
        cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
        rows = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in body)
        return (
            f"<p><strong>{html.escape(self.headline)}</strong><br>{html.escape(self._about())}</p>"
            f"<table><thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table>"
        )

    def to_dict(self, *, active_series: bool = False) -> dict[str, Any]:
        """As plain data for strict JSON; NaN and infinities are None (``n_infinite`` counts the latter).

        Parameters
        ----------
        active_series : bool
            With the series over active frames too, not only their summaries.
        """
        result: dict[str, Any] = {
            name: _summary_dict(summary, active_series=active_series) for name, summary in self.summaries.items()
        }
        for name in (*DISTANCES, *_SCALARS):
            result[name] = json_number(getattr(self, name))
        for name in ("sample_rate_hz", "n_samples", "n_frames", "dropped_samples"):
            result[name] = getattr(self, name)
        result["floored_fraction"] = {name: json_number(value) for name, value in self.floored_fraction.items()}
        result["settings"] = dict(self.settings)
        result["flags"] = [flag.to_dict() for flag in self.flags]
        if self.signals is not None:
            result["signals"] = {name: signal.to_dict() for name, signal in self.signals.items()}
        if self.ratio_to_null is not None:
            result["ratio_to_null"] = {name: json_number(value) for name, value in self.ratio_to_null.items()}
        return result


def _summary_dict(summary: Summary, *, active_series: bool) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for entry in dataclasses.fields(summary):
        value = getattr(summary, entry.name)
        if isinstance(value, float):
            result[entry.name] = json_number(value)
        elif isinstance(value, int):
            result[entry.name] = value
    if summary.active is not None:
        result["active"] = _summary_dict(summary.active, active_series=active_series)
        if not active_series:
            del result["active"]["series"]
    result["series"] = {
        "time_s": json_numbers(summary.series.time_s),
        "value": json_numbers(summary.series.value),
    }
    return result


def ratio_to_null(comparison: AudioComparison, null_comparison: AudioComparison) -> dict[str, float]:
    """Each distance as a multiple of that of the null.

    SNR and SI-SDR are no distances; theirs is the ratio of relative residual amplitudes ``10^(−dB/20)``.

    Parameters
    ----------
    comparison, null_comparison : AudioComparison
        Of the fix and of the null (the reference with another noise seed), against the same reference.

    Returns
    -------
    dict of str to float
        One value per summary and per name in :data:`DISTANCES`, of whole-file figures; below 1 the estimate is
        nearer to the reference than chance moves it. NaN where either has no value.

    Raises
    ------
    AudioParameterError
        The settings differ, or the lengths by more than a tenth; or the null is the reference itself, is not finite
        or is digital silence where the reference is not.
    """
    for name, value in comparison.settings.items():
        other = null_comparison.settings.get(name)
        if other != value:
            raise AudioParameterError(f"{name} is {value!r}, the null's {other!r}; compare both with the same settings")
    if abs(comparison.duration_s - null_comparison.duration_s) > _LENGTH_TOLERANCE * null_comparison.duration_s:
        raise AudioParameterError(
            f"the comparison covers {comparison.duration_s:.3f} s, the null {null_comparison.duration_s:.3f} s; "
            "distances shrink with length: use a null of the same length"
        )
    _check_null(null_comparison)
    ratios = {}
    for name, summary in comparison.summaries.items():
        value, null = summary.whole_file, null_comparison.summaries[name].whole_file
        ratios[name] = distance_ratio(_as_distance(value, name), _as_distance(null, name))
    for name in DISTANCES:
        ratios[name] = distance_ratio(getattr(comparison, name), getattr(null_comparison, name))
    return ratios


def _check_null(null: AudioComparison) -> None:
    """Refuse a null that would flatter everything that is held against it."""
    broken = [flag for flag in null.flags if flag.is_failure]
    if broken:
        raise AudioParameterError(
            f"the null cannot be one: {broken[0].message}; render the reference again, another seed"
        )
    if null.summaries["snr_db"].whole_file == float("inf") and null.ltas_distance_db == 0.0:
        raise AudioParameterError(
            "the null is the reference itself; expected another rendering of it, as by another seed"
        )


def _as_distance(value: float, name: str) -> float:
    metric = metric_by_name(name)
    return value if metric.direction == "lower" else 10.0 ** (-value / 20.0)


Align = Literal["lag", "length"]

_FRAME_METRICS = {
    "log_spectral_distance_db": spectral.frame_log_spectral_distance_db,
    "log_magnitude_l1_db": spectral.frame_log_magnitude_l1_db,
    "mel_mcd_db": spectral.frame_mel_mcd_db,
    "level_error_db": spectral.frame_level_error_db,
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
    floor: float = FLOOR,
    stop_at_divergence: bool = False,
    block_windows: int = BLOCK_WINDOWS,
    align: Align | None = None,
    inspect_each: bool = False,
) -> AudioComparison:
    """Compare an estimate with its aligned reference.

    Parameters
    ----------
    reference, estimate : np.ndarray, shape (n_samples,)
        Mono, float32 or float64 (both the same; the transform runs in it), same length, full scale = 1.0.
    sample_rate_hz : int
        At least 8000.
    floor : float
        Smallest power that a logarithm sees.
    stop_at_divergence : bool
        Leave out every window that ends after `t_div_s` from the aligned summaries. For recordings that are not
        aligned frame by frame throughout.
    block_windows : int
        Windows read at once; changes no result.
    align : {None, "lag", "length"}
        ``"lag"`` takes the lag out first, to a fraction of a sample (windowed sinc, 257 taps), and compares what both
        have in common; their lengths may differ. ``"length"`` does so where the lengths differ, and counts that as a
        difference. Nothing is moved unless it is asked for.
    inspect_each : bool
        Inspect each signal too: the result has `signals`, flags jumps, repeats and loops, and names what was done to
        the estimate.

    Returns
    -------
    AudioComparison

    Raises
    ------
    AudioParameterError
        The signals cannot be compared, or are shorter than one frame.
    """
    pair = checked_pair(reference, estimate, sample_rate_hz=sample_rate_hz, aligned=align is None)
    options = _Options(floor, stop_at_divergence, block_windows, align, inspect_each)
    return _compare(pair, options, on_progress=None)


def compare_files(
    reference: Path | str,
    estimate: Path | str,
    *,
    null_path: Path | str | None = None,
    on_progress: Callable[[float], None] | None = None,
    dtype: FloatName = "float32",
    floor: float = FLOOR,
    stop_at_divergence: bool = False,
    block_windows: int = BLOCK_WINDOWS,
    align: Align | None = None,
    inspect_each: bool = False,
    on_block: Callable[[FrameGrid, FrameBlock], None] | None = None,
    resample: bool = False,
    mono: bool = False,
) -> AudioComparison:
    """Compare two audio files without holding them in memory; otherwise as :func:`compare`.

    Parameters
    ----------
    reference, estimate : Path or str
        Any format that libsndfile reads; same sample rate and length. A file with the samples of the reference and
        another sample rate in its header is compared at the reference's rate, and flagged.
    null_path : Path or str, optional
        A second rendering of the reference (another noise seed), compared with the reference as the estimate is, so
        that the result has a `ratio_to_null`.
    dtype : {"float32", "float64"}
        What samples are read as.
    floor, stop_at_divergence, block_windows, align, inspect_each
        See :func:`compare`.
    on_block : callable, optional
        Called with the grid and each block of the pair that is compared, as for a picture of the spectra.
    on_progress : callable, optional
        Called with the fraction done, 0 to 1, rising, over all passes.
    resample : bool
        Resample the estimate and the null to the reference's rate (scipy's polyphase filter); else another rate is an
        error.
    mono : bool
        Mix channels to their mean; else more than one is an error.

    Raises
    ------
    SignalFileError
        A file is missing, unreadable or torn.
    AudioParameterError
        See :func:`compare`.
    """
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(FileSource(path, dtype=dtype, name=name, mono=mono))
            for path, name in ((reference, "reference"), (estimate, "estimate"))
        )
        like, flags = _at_rate_of(first, second, resample=resample)
        check_alike(first, like, aligned=align is None)
        options = _Options(floor, stop_at_divergence, block_windows, align, inspect_each, on_block)
        share = 1.0 if null_path is None else 0.5
        result = _compare((first, like), options, on_progress=_part_of(on_progress, 0.0, share))
        result = dataclasses.replace(result, flags=(*flags, *result.flags, *storage_flags((first, second))))
        if null_path is None:
            return result
        null = stack.enter_context(FileSource(null_path, dtype=dtype, name="null", mono=mono))
        like, _ = _at_rate_of(first, null, resample=resample)
        check_alike(first, like, aligned=align is None)
        options = dataclasses.replace(options, inspect_each=False, on_block=None)
        null_result = _compare((first, like), options, on_progress=_part_of(on_progress, share, share))
        null_result = dataclasses.replace(null_result, flags=null_result.flags + storage_flags([null]))
        return result.against_null(null_result)


def _at_rate_of(reference: FileSource, source: FileSource, *, resample: bool) -> tuple[Source, tuple[Flag, ...]]:
    """The source at the rate of the reference: as it is, as its header should say, or resampled where asked for."""
    rate, other = reference.sample_rate_hz, source.sample_rate_hz
    if rate == other:
        return source, ()
    if is_relabelled(reference, source):
        message = f"the header of the estimate is wrong: it says {other} Hz, its samples are those of {rate} Hz"
        flag = Flag(kind="rate", signal="estimate", time_s=None, count=1, message=message)
        return Relabelled(source, rate), (flag,)
    return (Resampled(source, rate) if resample else source), ()


@dataclass(frozen=True)
class _Options:
    floor: float
    stop_at_divergence: bool
    block_windows: int
    align: Align | None
    inspect_each: bool
    on_block: Callable[[FrameGrid, FrameBlock], None] | None = None

    def __post_init__(self) -> None:
        if self.align not in (None, "lag", "length"):
            raise AudioParameterError(f"align is {self.align!r}; expected None, 'lag' or 'length'")


def _part_of(on_progress: Callable[[float], None] | None, start: float, share: float) -> Callable[[float], None]:
    """Map the fractions 0 to 1 of one part of the work to `start` to ``start + share`` of the whole."""

    def report(fraction: float) -> None:
        if on_progress is not None:
            on_progress(min(1.0, start + share * fraction))

    return report


def _sample_sums(block: FrameBlock) -> dict[str, np.ndarray]:
    reference, estimate = block.samples
    return dict(vars(projection_sums(reference, estimate, block.half_starts, workspace=block.workspace)))


def _compare(
    pair: tuple[Source, Source], options: _Options, *, on_progress: Callable[[float], None] | None
) -> AudioComparison:
    moved, found, longer = 0.0, None, pair[1].n_samples - pair[0].n_samples
    whole = pair
    if options.align == "lag" or longer:
        pair, moved, found = _align(pair)
    observers = _observe(pair, options, on_progress=on_progress)
    table = observers.builder.table
    grid = table.grid
    t_div_s = _divergence_s(table)
    window_ends_s = (1 + np.arange(grid.n_started_windows)) * grid.window_samples / grid.sample_rate_hz
    stop_s = t_div_s if options.stop_at_divergence else float("nan")  # nothing is beyond NaN
    signals = {inspector.name: inspector.result() for inspector in observers.inspectors}
    lag = measure_lag(*pair)
    detected = [flag for signal in signals.values() for flag in signal.flags if flag.kind in DETECTED]
    summaries = _summaries(table, window_ends_s > stop_s)
    changes: list[Flag] = []
    wraps: list[Flag] = []
    if signals and table.silent_windows.mean() < 0.5 and table.bad_samples.sum() == 0:
        flatness_db = signals["estimate"].spectral_flatness_db
        differs = _far(summaries)
        wraps = wraps_in_time(pair, lag) if differs else []
        if differs and not wraps:
            changes = moved_or_misread(whole, correlation=lag.correlation)
        changes = wraps or changes or changes_of(pair, differs=differs, found=found, flatness_db=flatness_db)
    return AudioComparison(
        **_whole_figures(table, floor=options.floor),
        settings=_settings(grid, options, dtype=pair[0].dtype.name),
        summaries=summaries,
        t_div_s=t_div_s,
        lag_s=lag.lag_s,
        lag_correlation=lag.correlation,
        fine_lag_s=lag.fine_lag_s,
        lag_cost_db=lag.cost_db,
        flags=(
            *(flag for flag in pair_flags(table, lag) if not (wraps and flag.kind == "lag")),
            *alignment_flags(moved, longer, grid.sample_rate_hz, rest_of(whole, moved) if signals and longer else ""),
            *changes,
            *observers.flags(),
            *news_of(detected),
        ),
        signals=signals or None,
    )


def _align(pair: tuple[Source, Source]) -> tuple[tuple[Source, Source], float, Match | None]:
    """The part of both that belongs together, how late the estimate was, and its seams where the lag changes."""
    lag = measure_lag(*pair)
    if wraps_in_time(pair, lag):
        return overlap(*pair, 0), 0.0, None
    if pair[0].n_samples == pair[1].n_samples and abs(lag.correlation) >= SURE_CORRELATION:
        return *aligned_by_lag(*pair), None
    found = match(*pair)
    if not found.is_sure.any():
        return overlap(*pair, 0), 0.0, found
    first = int(found.lags[found.is_sure][0]) if found.seams else found.lag
    aligned, shift = aligned_by_lag(*overlap(*pair, first))
    return aligned, first + shift, found if found.seams or not found.in_order else None


def _observe(
    pair: tuple[Source, Source], options: _Options, *, on_progress: Callable[[float], None] | None
) -> _Observers:
    observers = _Observers(FrameGrid(pair[0].sample_rate_hz, pair[0].n_samples), inspect_each=options.inspect_each)
    run = blocks(pair, floor=options.floor, block_windows=options.block_windows, wanted=observers.wanted)
    for grid, block in run:
        observers.add(block)
        if options.on_block is not None:
            options.on_block(grid, block)
        if on_progress is not None:
            on_progress(block.stop_window / grid.n_started_windows)
    return observers


def _whole_figures(table: HalfWindowTable, *, floor: float) -> dict[str, Any]:
    grid = table.grid
    ltas, frechet = _distances(table, floor=floor)
    n_bins = grid.n_frames * grid.n_bins
    return {
        "sample_rate_hz": grid.sample_rate_hz,
        "n_samples": grid.n_samples,
        "n_frames": grid.n_frames,
        "dropped_samples": grid.dropped_samples,
        "duration_s": grid.n_samples / grid.sample_rate_hz,
        "ltas_distance_db": ltas,
        "frechet_distance": frechet,
        "active_fraction": _quotient(float(table.active_frames.sum()), float(table.frames.sum())),
        "floored_fraction": {
            name: int(count) / n_bins for name, count in zip(SIGNALS, table.floored_bins, strict=True)
        },
    }


class _Observers:
    def __init__(self, grid: FrameGrid, *, inspect_each: bool) -> None:
        self._rate = grid.sample_rate_hz
        self.builder = TableBuilder(
            grid, 2, summed=_FRAME_METRICS, pooled=_POOLED_KERNELS, halved=("mel_mcd_db",), moments=True
        )
        self._clipping = [Clipping() for _ in SIGNALS]
        self._dropouts = Dropouts(grid)
        self.inspectors = [Inspector(grid, name) for name in SIGNALS] if inspect_each else []
        kernels = {**_FRAME_METRICS, **_POOLED_KERNELS}
        attributes: tuple[str, ...] = ("bin_sum", "floored_bins", "cepstra", "power_sum")
        if inspect_each:
            kernels |= kernels_of(0) | kernels_of(1)
            attributes += ("log_bands",)
        self.wanted = Wanted(kernels=kernels, attributes=attributes)

    def add(self, block: FrameBlock) -> None:
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
