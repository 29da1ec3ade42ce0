"""What a comparison holds, and its ratio to a null.

Conventions: as in :mod:`audio_metrics.comparison`, which makes it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from audio_metrics.catalog import metric_by_name
from audio_metrics.errors import ParameterError
from audio_metrics.flags import Flag, json_number, json_numbers
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

_LENGTH_TOLERANCE = 0.1


@dataclass(frozen=True, kw_only=True)
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
        Of the whole file, unaligned, each signal without its own silent windows.
    t_div_s : float
        Start of the first half second in which the estimate is another sound; NaN if never.
    lag_s, lag_correlation : float
        See :class:`~audio_metrics.lag.Lag`.
    active_fraction : float
        Fraction of usable frames that are active in the reference.
    floored_fraction : dict of str to float
        Fraction of bins under the floor, per signal.
    flags : tuple of Flag
    ratio_to_null : dict of str to float, or None
        See :func:`ratio_to_null`.
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
    active_fraction: float
    floored_fraction: dict[str, float]
    flags: tuple[Flag, ...]
    ratio_to_null: dict[str, float] | None = None

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
        for name in (*DISTANCES, "t_div_s", "lag_s", "lag_correlation", "active_fraction", "duration_s"):
            result[name] = json_number(getattr(self, name))
        for name in ("sample_rate_hz", "n_samples", "n_frames", "dropped_samples"):
            result[name] = getattr(self, name)
        result["floored_fraction"] = {name: json_number(value) for name, value in self.floored_fraction.items()}
        result["settings"] = dict(self.settings)
        result["flags"] = [flag.to_dict() for flag in self.flags]
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
        The settings differ, or the lengths by more than a tenth.
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
    ratios = {}
    for name, summary in comparison.summaries.items():
        value, null = summary.whole_file, null_comparison.summaries[name].whole_file
        ratios[name] = distance_ratio(_as_distance(value, name), _as_distance(null, name))
    for name in DISTANCES:
        ratios[name] = distance_ratio(getattr(comparison, name), getattr(null_comparison, name))
    return ratios


def _as_distance(value: float, name: str) -> float:
    metric = metric_by_name(name)
    if metric.low < 0.0 and metric.direction == "lower":
        return value if value > 0.0 else float("nan")  # an unbiased estimate may fall below 0
    if metric.direction == "lower":
        return value
    return 10.0 ** (-value / 20.0) if metric.unit == "dB" else metric.high - value
