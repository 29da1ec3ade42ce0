"""What the sound says: fixes and controls against the original speech, weighed by the noise floor.

A *shift* is a condition's value minus the reference's. The noise floor is the reference with another noise seed, so
its shift is what chance does (one draw of it); only a shift larger in size is held against a fix. Both controls
degrade the voice on purpose: where one of them shows nothing, the run cannot show it of a fix either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from precision_eval.core.formatting import duration_long, fixed, join, plural
from precision_eval.results.model import Group, Row, figure_of
from precision_eval.results.reading import Run

Shifts = tuple[tuple[Row, float], ...]

NOISE_FLOOR_FACTOR = 3.0
"""A judgement, not a calibration: the noise floor is one draw, so more than its own shift is asked for. Set after a
ten-minute run in which a factor of 1 had singled out bfloat16 by a hair."""

_PLACES = (
    ("MCD to the original speech", ("against_original", "mel_mcd_db", "mean"), 1.0, " dB", 2),
    ("phonemes right", ("phoneme_accuracy", "value"), -1.0, "", 3),
)


@dataclass(frozen=True, kw_only=True)
class Yardstick:
    """One figure that compares with the original speech, with everybody's shift from the reference."""

    name: str
    worse: float
    unit: str
    decimals: int
    reference: float
    noise_floor: float | None
    fixes: Shifts
    controls: Shifts

    def text(self, shift: float) -> str:
        """Write a shift with sign and unit: ``+0.55 dB``, ``−0.052``."""
        number = fixed(shift, decimals=self.decimals)
        return f"{'' if number.startswith('−') else '+'}{number}{self.unit}"

    def beyond(self, shifts: Shifts) -> Shifts:
        """Return those whose shift is larger than three times the noise floor's, either way; none where
        there is no noise floor.
        """
        chance = None if self.noise_floor is None else NOISE_FLOOR_FACTOR * abs(self.noise_floor)
        return tuple((row, shift) for row, shift in shifts if chance is not None and abs(shift) > chance)

    def worse_than_chance(self, shifts: Shifts) -> tuple[Row, ...]:
        """Return those that are worse than the reference by more than that."""
        return tuple(row for row, shift in self.beyond(shifts) if shift * self.worse > 0)


def yardsticks_of(run: Run, section: Group) -> tuple[Yardstick, ...]:
    """Return the yardsticks that the reference and at least one fix of `section` have."""
    comparators = run.comparators(section, "audio")
    found = []
    for name, path, worse, unit, decimals in _PLACES:
        reference = next((value for _, value in _values(comparators, "reference", path)), None)
        fixes = _values(section.curing, "fix", path)
        if reference is None or not fixes:
            continue
        noise_floor = next((value - reference for _, value in _values(comparators, "noise_floor", path)), None)
        yardstick = Yardstick(
            name=name,
            worse=worse,
            unit=unit,
            decimals=decimals,
            reference=reference,
            noise_floor=noise_floor,
            fixes=tuple((row, value - reference) for row, value in fixes),
            controls=tuple((row, value - reference) for row, value in _values(comparators, "control", path)),
        )
        found.append(yardstick)
    return tuple(found)


def worse_by_sound(yardsticks: Sequence[Yardstick]) -> tuple[str, ...]:
    """Return the ids of the fixes that are worse than the reference by more than chance, by any yardstick."""
    return tuple(dict.fromkeys(row.fix for y in yardsticks for row in y.worse_than_chance(y.fixes)))


def silent_controls(yardsticks: Sequence[Yardstick]) -> tuple[str, ...]:
    """Return the ids of the controls that no yardstick shows as degraded beyond chance."""
    heard = {row.fix for y in yardsticks for row in y.worse_than_chance(y.controls)}
    return tuple(dict.fromkeys(row.fix for y in yardsticks for row, _ in y.controls if row.fix not in heard))


def measured_length(section: Group) -> str:
    """Return how much audio was compared, such as ``10 min`` or ``60 s``; empty where it is not recorded."""
    lengths = [length for row in section.curing if (length := figure_of(row.data("audio"), "duration_s"))]
    return duration_long(lengths[0]) if lengths else ""


def sound_sentences(run: Run, section: Group) -> list[str]:
    """Return what fixes and controls do against the original speech; empty where that was not measured."""
    yardsticks = yardsticks_of(run, section)
    if not yardsticks:
        return []
    return [_fixes_sentence(yardsticks), _controls_sentence(yardsticks, section)]


def _values(rows: Sequence[Row], role: str, path: tuple[str, ...]) -> list[tuple[Row, float]]:
    pairs: list[tuple[Row, Mapping[str, Any] | None]] = [(row, row.data("audio")) for row in rows if row.role == role]
    return [(row, value) for row, data in pairs if (value := figure_of(data, *path)) is not None]


def _fixes_sentence(yardsticks: Sequence[Yardstick]) -> str:
    level = " or ".join(f"{y.name} ({fixed(y.reference, decimals=y.decimals)}{y.unit})" for y in yardsticks)
    farthest = _named(yardsticks, [_farthest(y.fixes).fix for y in yardsticks])
    if any(y.noise_floor is None for y in yardsticks):
        return f"Farthest from the reference's {level}: {farthest}; without the noise floor no shift can be weighed."
    chance = ", ".join(y.text(y.noise_floor or 0.0) for y in yardsticks)
    beyond = [row.fix for y in yardsticks for row, _ in y.beyond(y.fixes)]
    if not beyond:
        return (
            f"No fix differs from the reference's {level} by more than three times the noise floor's shift "
            f"({chance}; one draw of chance); farthest: {farthest}."
        )
    text = (
        f"Farther from the reference's {level} than three times the noise floor's shift ({chance}; one draw "
        f"of chance): "
        f"{_named(yardsticks, beyond)}"
    )
    return f"{text}{'' if worse_by_sound(yardsticks) else ', none of them for the worse'}."


def _controls_sentence(yardsticks: Sequence[Yardstick], section: Group) -> str:
    names = list(dict.fromkeys(row.fix for y in yardsticks for row, _ in y.controls))
    if not names:
        return "No control was measured, so nothing shows that this run could reveal a degradation."
    if any(y.noise_floor is None for y in yardsticks):
        return ""
    silent = silent_controls(yardsticks)
    heard = [name for name in names if name not in silent]
    shown = f"{_named(yardsticks, heard)} {plural(len(heard), 'is', 'are')} worse by more than that, as intended"
    if not silent:
        every = {1: "The only control measured is", 2: "Both controls are"}.get(len(names), "All controls are")
        return f"{every} worse by more than that, as intended: {_named(yardsticks, heard)}."
    length = measured_length(section)
    run_text = f"this run of {length}" if length else "this run"
    return (
        f"{shown + ', but ' if heard else ''}{_named(yardsticks, silent)} {plural(len(silent), 'is', 'are')} not worse "
        f"by more than that: {run_text} is too short to judge by sound."
    )


def _named(yardsticks: Sequence[Yardstick], names: Sequence[str]) -> str:
    """Write each condition once, with its shift by every yardstick."""
    texts = []
    for name in dict.fromkeys(names):
        shifts = [y.text(shift) for y in yardsticks for row, shift in (*y.fixes, *y.controls) if row.fix == name]
        texts.append(f"{name} ({', '.join(shifts)})")
    return join(texts)


def _farthest(shifts: Shifts) -> Row:
    return max(shifts, key=lambda pair: abs(pair[1]))[0]
