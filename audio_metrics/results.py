"""What a comparison holds, how it is shown, and its ratio to a null.

Conventions: as in :mod:`audio_metrics.comparison`, which makes it.
"""

from __future__ import annotations

import dataclasses
import html
from dataclasses import dataclass
from typing import Any

from audio_metrics.catalog import metric_by_name
from audio_metrics.errors import ParameterError
from audio_metrics.flags import Flag, clock, headline, json_number, json_numbers
from audio_metrics.inspection import Inspection
from audio_metrics.longform import Summary, distance_ratio

SUMMARISED = (
    "log_spectral_distance_db",
    "log_magnitude_l1_db",
    "spectral_convergence",
    "mel_mcd_db",
    "level_error_db",
    "snr_db",
    "si_sdr_db",
)
"""Metrics of which a comparison holds a summary and a course over time."""

DISTANCES = ("ltas_distance_db", "frechet_distance")
"""Metrics of which a comparison holds one value for the whole file."""

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
class Comparison:
    """What :func:`~audio_metrics.comparison.compare` found.

    Attributes
    ----------
    sample_rate_hz, n_samples, n_frames, dropped_samples : int
        `dropped_samples` after the last whole frame.
    duration_s : float
    settings : dict
        Everything that changes the figures; two comparisons with other settings are not comparable.
    summaries : dict of str to Summary
        One per name in :data:`SUMMARISED`, and one per metric that was asked for, on its own windows.
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
    def headline(self) -> str:
        """What failed, what is doubtful, or that no fault was found; one line."""
        return headline(self.flags)

    def against_null(self, null: Comparison) -> Comparison:
        """With :func:`ratio_to_null`, and with the flags of the null.

        Parameters
        ----------
        null : Comparison
            Of the same reference with another honest rendering of it.

        Raises
        ------
        ParameterError
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


def ratio_to_null(comparison: Comparison, null_comparison: Comparison) -> dict[str, float]:
    """Each distance as a multiple of that of the null.

    SNR and SI-SDR are no distances; theirs is the ratio of relative residual amplitudes ``10^(−dB/20)``. Of STOI and
    PESQ it is the ratio of what is missing to the best score. A maximum mean discrepancy near 0 or below has no
    meaningful ratio: NaN where the null's is not positive.

    Parameters
    ----------
    comparison, null_comparison : Comparison
        Of the fix and of the null (the reference with another noise seed), against the same reference.

    Returns
    -------
    dict of str to float
        One value per summary and per name in :data:`DISTANCES`, of whole-file figures; below 1 the estimate is
        nearer to the reference than chance moves it. NaN where either has no value.

    Raises
    ------
    ParameterError
        The settings differ, or the lengths by more than a tenth; or the null is the reference itself, is not finite
        or is digital silence where the reference is not.
    """
    for name, value in comparison.settings.items():
        other = null_comparison.settings.get(name)
        if other != value:
            raise ParameterError(f"{name} is {value!r}, the null's {other!r}; compare both with the same settings")
    if abs(comparison.duration_s - null_comparison.duration_s) > _LENGTH_TOLERANCE * null_comparison.duration_s:
        raise ParameterError(
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


def _check_null(null: Comparison) -> None:
    """Refuse a null that would flatter everything that is held against it."""
    broken = [flag for flag in null.flags if flag.is_failure]
    if broken:
        raise ParameterError(f"the null cannot be one: {broken[0].message}; render the reference again, another seed")
    if null.summaries["snr_db"].whole_file == float("inf") and null.ltas_distance_db == 0.0:
        raise ParameterError("the null is the reference itself; expected another rendering of it, as by another seed")


def _as_distance(value: float, name: str) -> float:
    metric = metric_by_name(name)
    if metric.low < 0.0 and metric.direction == "lower":
        return value if value > 0.0 else float("nan")  # an unbiased estimate may fall below 0
    if metric.direction == "lower":
        return value
    return 10.0 ** (-value / 20.0) if metric.unit == "dB" else metric.high - value
