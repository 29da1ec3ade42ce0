"""The ladder as a table in Markdown, and as a scale to read a value on.

A response is the metric of the whole file; a dash where it has no value. A value is read on a kind of
rung by interpolation between its sizes (the logarithm of the response against the size in dB or bit, or against its
logarithm); beyond the ends it is only said to be less or more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from audio_metrics.catalog import metric_by_name
from audio_metrics.errors import AudioParameterError
from validation.audio_ladder.divergence import CURRENT_RULE, RULES, rule_name

COLUMNS: tuple[tuple[str, str], ...] = (
    ("log_spectral_distance_db", "LSD, dB"),
    ("log_magnitude_l1_db", "log L1, dB"),
    ("spectral_convergence", "SC"),
    ("mel_mcd_db", "mel MCD, dB"),
    ("level_error_db", "level error, dB"),
    ("snr_db", "SNR, dB"),
    ("si_sdr_db", "SI-SDR, dB"),
    ("ltas_distance_db", "LTAS, dB"),
    ("frechet_distance", "Fréchet, Np²"),
    ("lag_s", "lag, s"),
)
MORE_COLUMNS: tuple[tuple[str, str], ...] = (
    ("multi_resolution_stft_distance", "MR-STFT"),
    ("f0_error_cents", "F0, cents"),
    ("f0_frame_error", "FFE"),
    ("maximum_mean_discrepancy", "MMD"),
    ("mel_mean_difference_db", "mel mean, dB"),
    ("mel_spread_difference_db", "mel spread, dB"),
    ("band_level_distance_db", "band level, dB"),
    ("tilt_difference_db_per_octave", "tilt, dB/octave"),
    ("noise_floor_difference_db", "noise floor, dB"),
    ("course_difference_db_per_min", "course, dB/min"),
    ("clock_skew_ppm", "clock skew, ppm"),
)
_SCALES = ("noise", "quantised", "tilt", "clipped", "drop-outs of 20 ms")
_READ = (
    ("mel_mcd_db", (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0)),
    ("log_spectral_distance_db", (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)),
)
_LOGARITHMIC_UNITS = ("dB SNR", "bit")


def response(rung: dict[str, Any], name: str) -> float | None:
    """The metric of the whole file on one rung of a ladder's JSON; None where it has no value."""
    values = rung["free_running"] | rung["compare"]
    if name not in values:
        raise AudioParameterError(f"the ladder holds no {name!r}; it holds {', '.join(values)}")
    value = values[name]
    return value["whole_file"] if isinstance(value, dict) else value


def reading(ladder: dict[str, Any], name: str, value: float, *, kind: str) -> str:
    """Say which size of one kind of degradation has the same effect on a metric."""
    if metric_by_name(name).direction != "lower":
        raise AudioParameterError(f"{name} cannot be read on the ladder; give a metric that is lower where nearer")
    rungs = [rung for rung in ladder["rungs"] if rung["kind"] == kind and rung["value"] is not None]
    pairs = [(abs(rung["value"]), response(rung, name), rung["unit"]) for rung in rungs]
    points = sorted((found, size) for size, found, _ in pairs if found)
    if not points:
        raise AudioParameterError(f"the ladder has no sizes of {kind!r}")
    unit = pairs[0][2]
    effect = np.log([found for found, _ in points])
    sizes = np.array([size for _, size in points], float)
    if np.log(value) < effect[0]:
        return f"milder than {sizes[0]:g} {unit}"
    if np.log(value) > effect[-1]:
        return f"worse than {sizes[-1]:g} {unit}"
    straight = unit in _LOGARITHMIC_UNITS
    found_size = float(np.interp(np.log(value), effect, sizes if straight else np.log(sizes)))
    return f"{found_size if straight else np.exp(found_size):.3g} {unit}"


def write_table(ladder: dict[str, Any], path: Path) -> Path:
    """Write the ladder as Markdown."""
    about = ladder["reference"]
    lines = [
        "# The ladder of known degradations",
        "",
        f"Each degradation of `{about['name']}` ({about['duration_s']:g} s at {about['sample_rate_hz']} Hz) against "
        "the recording itself, float64, whole file. `null` is the same words again with another noise seed.",
        "",
        *_responses(ladder, (*COLUMNS, ("t_div_s", "t_div, s"))),
        "",
        "## Further metrics",
        "",
        "Multi-resolution STFT and pitch are aligned; the others need no alignment.",
        "",
        *_responses(ladder, MORE_COLUMNS),
        "",
        "## What a value is worth",
        "",
        "Which size of a degradation moves a metric as far:",
        "",
        *_readings(ladder),
        "",
        "## t_div",
        "",
        *_divergence(ladder),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def cell(value: float | None) -> str:
    """A number in three digits, with a real minus sign."""
    return "–" if value is None else f"{value:.3g}".replace("-", "−")


def _responses(ladder: dict[str, Any], columns: tuple[tuple[str, str], ...]) -> list[str]:
    """One row per rung; columns of metrics that were not measured are left out."""
    first = ladder["rungs"][0]
    measured = [(name, title) for name, title in columns if name in first["free_running"] | first["compare"]]
    lines = [_row(["rung", *(title for _, title in measured)]), _row(["---", *["---:"] * len(measured)])]
    for rung in ladder["rungs"]:
        lines.append(_row([rung["name"], *(cell(response(rung, name)) for name, _ in measured)]))
    return lines


def _readings(ladder: dict[str, Any]) -> list[str]:
    kinds = [kind for kind in _SCALES if any(rung["kind"] == kind for rung in ladder["rungs"])]
    lines = [_row(["value", *kinds]), _row(["---"] * (len(kinds) + 1))]
    titles = dict(COLUMNS)
    for name, values in _READ:
        title, unit = titles[name].split(", ")
        for value in values:
            cells = [reading(ladder, name, value, kind=kind) for kind in kinds]
            lines.append(_row([f"{title} {value:g} {unit}", *cells]))
    return lines


def _divergence(ladder: dict[str, Any]) -> list[str]:
    """Hits of each rule: false alarms where the words are the same, finds where they are others."""
    same = [rung for rung in ladder["rungs"] if rung["expected"] == "same"]
    other = [rung for rung in ladder["rungs"] if rung["expected"] == "other"]
    looked_at = sum(rung["t_div"]["after"] + rung["t_div"]["before"] for rung in same)
    lines = [
        f"False alarms among {looked_at} active half seconds of {len(same)} rungs with the same words (null included), "
        f"and how much of {len(other)} rungs with other words each rule finds. In force: {rule_name(CURRENT_RULE)}.",
        "",
        _row(["rule", "false alarms", "on", "found after the onset, worst rung", "latest first hit, s"]),
        _row(["---", "---:", "---", "---:", "---:"]),
    ]
    for rule in RULES:
        key = rule_name(rule)
        alarms = {rung["name"]: sum(rung["t_div"]["rules"][key][:2]) for rung in same}
        found = [rung["t_div"]["rules"][key][0] / rung["t_div"]["after"] for rung in other]
        late = [rung["t_div"]["rules"][key][2] for rung in other]
        latest = "never" if any(value is None for value in late) else f"{max(late):.3g}" if late else "–"
        guilty = sorted((name for name, count in alarms.items() if count), key=lambda name: -alarms[name])
        names = ", ".join(guilty[:3]) + (f" and {len(guilty) - 3} more" if len(guilty) > 3 else "") or "–"
        worst = f"{100 * min(found):.1f} %" if found else "–"
        mark = "**" if rule == CURRENT_RULE else ""
        lines.append(_row([f"{mark}{key}{mark}", str(sum(alarms.values())), names, worst, latest]))
    return lines
