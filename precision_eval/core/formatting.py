"""How figures are written in tables, on axes and in sentences: the one place that decides it.

Numbers carry as many digits as their interval supports at a glance: ratios three decimals, drifts two significant
digits, memory in powers of 1024. A missing figure is ``–``, never 0. A minus sign is ``−`` wherever a person reads it.
"""

from __future__ import annotations

import math
import re
import shlex
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

MISSING = "–"

METRIC_TITLES = {
    "log_spectral_distance_db": ("LSD", "dB", "log-spectral distance"),
    "mel_mcd_db": ("MCD", "dB", "mel-cepstral distortion"),
    "si_sdr_db": ("SI-SDR", "dB", "scale-invariant signal-to-distortion ratio"),
}
"""Metric key to (short name, unit, full name)."""

_SPACES = re.compile(r"[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+")


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


def significant(value: float | None, *, digits: int = 3) -> str:
    """Write a number to `digits` significant digits, without an exponent between 0.001 and 100,000."""
    if value is None or math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0.0:
        return "0"
    if not 1e-3 <= abs(value) < 1e5:
        return f"{value:.{digits - 2}e}".replace("-", "−")
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}".replace("-", "−")


def fixed(value: float | None, *, decimals: int) -> str:
    """Write a number with a fixed count of decimals; negative zero loses its sign."""
    return MISSING if value is None else f"{round(value, decimals) + 0.0:.{decimals}f}".replace("-", "−")


def with_interval(middle: str, low: str, high: str) -> str:
    """Write ``0.83 [0.82, 0.84]``, or the middle alone where either end is missing."""
    return middle if MISSING in (middle, low, high) else f"{middle} [{low}, {high}]"


def estimate(
    middle: float | None, low: float | None, high: float | None, *, write: Callable[[float | None], str]
) -> str:
    """Write a figure and its interval, each number as `write` does."""
    return with_interval(write(middle), write(low), write(high))


def ratio_text(ratio: float | None, low: float | None = None, high: float | None = None, *, decimals: int = 3) -> str:
    """Write a ratio, with its interval where it has one: ``0.830 [0.820, 0.840]``."""
    return estimate(ratio, low, high, write=lambda value: fixed(value, decimals=decimals))


def factor_text(factor: float | None, low: float | None = None, high: float | None = None, *, digits: int = 3) -> str:
    """Write new over old: ``×0.030 [0.028, 0.031]``; from 0 there is no factor."""
    if factor is None:
        return MISSING
    if not math.isfinite(factor):
        return "from 0"
    return f"×{estimate(factor, low, high, write=lambda value: scientific(value, digits=digits))}"


def memory_text(size_bytes: float | None) -> str:
    """Write bytes in the largest binary unit that leaves at least 1: ``33.6 MiB``."""
    if size_bytes is None:
        return MISSING
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size_bytes) >= scale:
            scaled = size_bytes / scale
            return f"{scaled:.0f} {unit}" if abs(scaled) >= 999.5 else f"{scaled:.3g} {unit}"
    return f"{size_bytes:.0f} B"


_BYTE_UNITS = {"": 1} | {f"{prefix}i": 2 ** (10 * power) for power, prefix in enumerate("kmgt", start=1)}
_BYTE_UNITS |= {prefix: 10 ** (3 * power) for power, prefix in enumerate("kmgt", start=1)}


def bytes_of(text: str) -> int | None:
    """Read a size, such as ``2 GiB`` (2³⁰) or ``800MB`` (10⁶); None where it is none."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([kmgt]?i?)b\s*", text, re.IGNORECASE | re.ASCII)
    unit = _BYTE_UNITS.get(match[2].lower()) if match else None
    return None if match is None or unit is None else int(float(match[1]) * unit)


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


def percent(fraction: float | None, *, decimals: int | None = None) -> str:
    """Write a fraction in per cent, with two significant digits or with a fixed count of decimals."""
    if fraction is None:
        return MISSING
    if decimals is not None:
        return f"{fixed(100.0 * fraction, decimals=decimals)} %"
    return f"{fraction * 100:.2g} %" if fraction < 0.995 else f"{fraction * 100:.0f} %"


def percent_change(ratio: float | None, *, decimals: int = 2) -> str:
    """Write new over old as a change: ``+1.20 %`` for 1.012."""
    if ratio is None:
        return MISSING
    text = fixed(100.0 * (ratio - 1.0), decimals=decimals)
    return f"{'' if text.startswith('−') else '+'}{text} %"


def status_text(status: str) -> str:
    """Write a status or another name in words: ``out of memory``."""
    return status.replace("_", " ")


def yes_no(value: bool | None) -> str:
    """Write ``yes`` or ``no``, and a dash where nobody knows."""
    return MISSING if value is None else "yes" if value else "no"


Key = TypeVar("Key")
Value = TypeVar("Value")


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Gather values by key, both in the order in which they come."""
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def join(names: Sequence[str]) -> str:
    """Join names as a sentence does: ``a``, ``a and b``, ``a, b and c``."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def plural(count: int, singular: str, many: str) -> str:
    return singular if count == 1 else many


def counted(count: int, noun: str) -> str:
    """Write a count and its noun: ``1 version``, ``1,200 versions``."""
    return f"{count:,} {plural(count, noun, f'{noun}s')}"


def shortened(text: str, *, limit: int) -> str:
    """Cut a text to `limit` characters, the last of them ``…``."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def one_line(text: str) -> str:
    """Return a text without line breaks, and with every character visible that a terminal would obey."""
    return visible(_SPACES.sub(" ", text))


def command_line(*words: object) -> str:
    """Write a command of this package with its words quoted, so that it can be pasted into a shell."""
    return shlex.join(["precision-eval", *map(str, words)])


def visible(text: str) -> str:
    r"""Write control, escape and direction characters as ``\x1b``, ``\u202e``; line breaks and tabs stay."""
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(char if char in "\n\t" or not _is_control(char) else ascii(char)[1:-1] for char in text)


def _is_control(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")


_UNIT_SUFFIXES = ("_dbfs", "_db_per_octave", "_db_per_min", "_db", "_hz", "_s", "_cents", "_ppm", "_bits", "_per_min")
_METRIC_WORDS = {"mcd": "MCD", "snr": "SNR", "si sdr": "SI-SDR", "ltas": "LTAS", "rms": "RMS", "dc": "DC", "l1": "L1"}
_METRIC_WORDS |= {"stft": "STFT", "frechet": "Fréchet"}


def title_of(name: str) -> str:
    """Return ``mel MCD`` for ``mel_mcd_db``: no unit, spaces, abbreviations in their usual case."""
    for suffix in _UNIT_SUFFIXES:
        if name.endswith(suffix):
            name = name.removesuffix(suffix)
            break
    words = f" {name.replace('_', ' ')} "
    for word, written in _METRIC_WORDS.items():
        words = words.replace(f" {word} ", f" {written} ")
    return words.strip()
