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
from precision_eval.core.formatting import MISSING
from precision_eval.core.table import Strong, Table, make_table, to_markdown
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
    same, other = ([rung for rung in ladder["rungs"] if rung["expected"] == kind] for kind in ("same", "other"))
    looked_at = sum(rung["t_div"]["after"] + rung["t_div"]["before"] for rung in same)
    parts = [
        "# The ladder of known degradations",
        f"Each degradation of `{about['name']}` ({about['duration_s']:g} s at {about['sample_rate_hz']} Hz) against "
        "the recording itself, float64, whole file. `noise_floor` is the same words again with another noise seed.",
        to_markdown(_responses(ladder, (*COLUMNS, ("t_div_s", "t_div, s")))),
        "## Further metrics",
        "Multi-resolution STFT and pitch are aligned; the others need no alignment.",
        to_markdown(_responses(ladder, MORE_COLUMNS)),
        "## What a value is worth",
        "Which size of a degradation moves a metric as far:",
        to_markdown(_readings(ladder)),
        "## t_div",
        f"False alarms among {looked_at} active half seconds of {len(same)} rungs with the same words (noise floor "
        f"included), and how much of {len(other)} rungs with other words each rule finds. "
        f"In force: {rule_name(CURRENT_RULE)}.",
        to_markdown(_rules(same, other)),
    ]
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return path


def cell(value: float | None) -> str:
    """A number in three digits, with a real minus sign."""
    return "–" if value is None else f"{value:.3g}".replace("-", "−")


def _responses(ladder: dict[str, Any], columns: tuple[tuple[str, str], ...]) -> Table:
    """One row per rung; columns of metrics that were not measured are left out."""
    first = ladder["rungs"][0]
    measured = [(name, title) for name, title in columns if name in first["free_running"] | first["compare"]]
    rows = [[rung["name"], *(cell(response(rung, name)) for name, _ in measured)] for rung in ladder["rungs"]]
    return make_table(["rung", *(title for _, title in measured)], rows, align="l" + "r" * len(measured))


def _readings(ladder: dict[str, Any]) -> Table:
    kinds = [kind for kind in _SCALES if any(rung["kind"] == kind for rung in ladder["rungs"])]
    rows = []
    for name, values in _READ:
        title, unit = dict(COLUMNS)[name].split(", ")
        for value in values:
            cells = [reading(ladder, name, value, kind=kind) for kind in kinds]
            rows.append([f"{title} {value:g} {unit}", *cells])
    return make_table(["value", *kinds], rows)


def _rules(same: list[dict[str, Any]], other: list[dict[str, Any]]) -> Table:
    """Hits of each rule: false alarms where the words are the same, finds where they are others."""
    rows = []
    for rule in RULES:
        key = rule_name(rule)
        alarms = {rung["name"]: sum(rung["t_div"]["rules"][key][:2]) for rung in same}
        hits = [rung["t_div"]["rules"][key][0] / rung["t_div"]["after"] for rung in other]
        late = [rung["t_div"]["rules"][key][2] for rung in other]
        latest = "never" if any(value is None for value in late) else f"{max(late):.3g}" if late else MISSING
        guilty = sorted((name for name, count in alarms.items() if count), key=lambda name: -alarms[name])
        names = ", ".join(guilty[:3]) + (f" and {len(guilty) - 3} more" if len(guilty) > 3 else "") or MISSING
        worst = f"{100 * min(hits):.1f} %" if hits else MISSING
        rows.append([Strong(key) if rule == CURRENT_RULE else key, str(sum(alarms.values())), names, worst, latest])
    columns = ("rule", "false alarms", "on", "found after the onset, worst rung", "latest first hit, s")
    return make_table(columns, rows, align="lrlrr")
