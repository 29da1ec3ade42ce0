"""How figures are written in tables, on axes and in sentences.

Numbers carry as many digits as their interval supports at a glance: ratios three decimals, drifts two significant
digits, memory in powers of 1024. A missing figure is ``–``, never 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from precision_eval.diagnose.explain.reading import cleaned, find_members

MISSING = "–"

METRIC_TITLES = {
    "log_spectral_distance_db": ("LSD", "dB", "log-spectral distance"),
    "mel_mcd_db": ("MCD", "dB", "mel-cepstral distortion"),
    "si_sdr_db": ("SI-SDR", "dB", "scale-invariant signal-to-distortion ratio"),
}
"""Metric key to (short name, unit, full name)."""

_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+\b")
_LONGEST_REASON = 200


def scientific(value: float | None, *, digits: int = 2) -> str:
    """Write a number of any magnitude in few characters: ``3.1e-7``, ``0.25``, ``12``."""
    if value is None:
        return MISSING
    if value == 0:
        return "0"
    if 1e-2 <= abs(value) < 1e4:
        return f"{value:#.{digits}g}".rstrip(".") if abs(value) < 100 else f"{value:.0f}"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def fixed(value: float | None, *, decimals: int) -> str:
    """Write a number with a fixed count of decimals; negative zero loses its sign."""
    return MISSING if value is None else f"{round(value, decimals) + 0.0:.{decimals}f}".replace("-", "−")


def with_interval(middle: str, low: str, high: str) -> str:
    """Write ``0.83 [0.82, 0.84]``, or the middle alone where either end is missing."""
    return middle if MISSING in (middle, low, high) else f"{middle} [{low}, {high}]"


def memory_text(size_bytes: float | None) -> str:
    """Write bytes in the largest binary unit that leaves at least 1: ``33.6 MiB``."""
    if size_bytes is None:
        return MISSING
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size_bytes) >= scale:
            scaled = size_bytes / scale
            return f"{scaled:.0f} {unit}" if abs(scaled) >= 999.5 else f"{scaled:.3g} {unit}"
    return f"{size_bytes:.0f} B"


def duration_text(seconds: float | None) -> str:
    """Write seconds in the unit that reads best: ``310 µs``, ``4.1 ms``, ``1.2 s``."""
    if seconds is None:
        return MISSING
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.9995 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def duration_long(seconds: float) -> str:
    """Write the length of audio: ``60 s`` below two minutes, else ``10 min``."""
    return f"{seconds:.3g} s" if seconds < 120 else f"{seconds / 60:.3g} min"


def times_text(factor: float) -> str:
    """Write a factor for a sentence: ``1.2 times``, ``26,000 times``."""
    if factor < 10:
        return f"{factor:.1f} times"
    step = 10 ** (math.floor(math.log10(factor)) - 1)
    return f"{round(factor / step) * step:,} times"


def percent(value: float | None) -> str:
    """Write a fraction as per cent with two significant digits."""
    if value is None:
        return MISSING
    return f"{value * 100:.2g} %" if value < 0.995 else f"{value * 100:.0f} %"


def short_reason(reason: str | None) -> str:
    """Shorten an error message so that it stays recognisable."""
    if not reason:
        return "no reason recorded"
    found, _ = find_members(cleaned(reason))
    if found:
        return found[-1].sentence
    first = _ADDRESS.sub("0x…", reason.strip().splitlines()[0])
    return first if len(first) <= _LONGEST_REASON else first[: _LONGEST_REASON - 1] + "…"


def join(names: Sequence[str]) -> str:
    """Join names as a sentence does: ``a``, ``a and b``, ``a, b and c``."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def plural(count: int, singular: str, many: str) -> str:
    """Choose the verb or noun that goes with `count`."""
    return singular if count == 1 else many


def decade_floor(value: float) -> float:
    """Return the power of ten at or below a positive `value`."""
    return float(10.0 ** math.floor(math.log10(value)))
