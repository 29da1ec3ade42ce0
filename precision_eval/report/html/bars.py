"""Memory of each fix as bars, and shifts of the sound as dots: what is compared with chance and with the controls.

Conventions: memory is bytes; the firm part is what is stored, the striped one what a call allocates on top. A shift is
a value minus the reference's, and the grey band is three times the noise floor's shift, to both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from precision_eval.core.formatting import fixed
from precision_eval.report.findings_sound import NOISE_FLOOR_FACTOR, Yardstick, yardsticks_of
from precision_eval.report.html.facts import lines_of, memory_of, record_of
from precision_eval.report.html.figures import Figure, Ranged, combined, figure
from precision_eval.report.html.looks import Palette, label_of, marker
from precision_eval.report.html.places import Place
from precision_eval.report.html.svg import Frame, Scale, axes, chart, padded
from precision_eval.report.html.tradeoff import Chart
from precision_eval.results.data import Row, memory_bytes

_ROW_PX = 26.0
_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))
PATHS = {
    "MCD to the original speech": ("against_original", "mel_mcd_db", "mean"),
    "phonemes right": ("phoneme_accuracy", "value"),
}
"""Where the figures of a yardstick of sound stand in an ``audio`` record."""


@dataclass(frozen=True, kw_only=True)
class Shift:
    """How far one condition is from the reference, by one yardstick."""

    row: Row
    value: Figure
    shift: Figure
    beyond: bool
    worse: bool


def memory_chart(place: Place, palette: Palette) -> Chart | None:
    """Draw storage and peak of every fix of a group; None where memory was not measured."""
    rows = [row for row in place.section.fixes if memory_bytes(row)]
    if not rows:
        return None
    totals = [sum(memory_bytes(row) or ()) for row in rows]
    scale, unit = next((scale, unit) for scale, unit in _UNITS if max(totals) >= scale or scale == 1)
    frame = Frame(width=430, height=56 + _ROW_PX * len(rows), left=112, right=74, top=6)
    x = frame.x(0.0, max(totals) / scale or 1.0)
    key = f"memory-{place.key}"
    body = [axes(frame, x, None, x_title=f"memory of a call, {unit}")]
    tips = []
    for number, row in enumerate(rows):
        tips.append((f"{key}-{number}", row, lines_of(row, place.section)))
        body.append(_bar(row, x, frame.top + _ROW_PX * number, scale, f"{key}-{number}", palette.css(row.fix)))
    svg = chart(frame, Markup("").join(body), title=f"{place.title}: memory per fix", key=key, x=x, kind="bars")
    missing = [row for row in place.section.curing if row not in rows]
    notes = tuple(f"not measured: {row.fix}" for row in missing)
    return Chart(key=key, title=place.label, svg=svg, tips=tuple(tips), notes=notes)


def shifts_of(place: Place) -> tuple[tuple[Yardstick, tuple[Shift, ...]], ...]:
    """Return, per yardstick of sound, every condition's shift from the reference: noise floor, controls, then fixes."""
    comparators = place.run.comparators(place.section, "audio")
    reference = next((row for row in comparators if row.role == "reference"), None)
    noise_floor = [row for row in comparators if row.role == "noise_floor"]
    found = []
    for yardstick in yardsticks_of(place.run, place.section):
        path = PATHS[yardstick.name]
        rows = [*noise_floor, *(row for row, _ in yardstick.controls), *(row for row, _ in yardstick.fixes)]
        beyond = {row.fix for row, _ in yardstick.beyond((*yardstick.controls, *yardstick.fixes))}
        worse = {row.fix for row in yardstick.worse_than_chance((*yardstick.controls, *yardstick.fixes))}
        shifts = []
        for row in rows:
            own, base = (_value(one, path, yardstick) for one in (row, reference))
            if own is None or base is None:
                continue
            shift = combined("difference", own, base, write=yardstick.text)
            shifts.append(Shift(row=row, value=own, shift=shift, beyond=row.fix in beyond, worse=row.fix in worse))
        found.append((yardstick, tuple(shifts)))
    return tuple(found)


def shift_chart(place: Place, yardstick: Yardstick, shifts: Sequence[Shift], palette: Palette) -> Chart:
    """Draw the shifts of one yardstick as dots around the reference, with the reach of chance."""
    frame = Frame(width=430, height=56 + _ROW_PX * len(shifts), left=160, right=74, top=6)
    reach = 0.0 if yardstick.noise_floor is None else NOISE_FLOOR_FACTOR * abs(yardstick.noise_floor)
    values = [one.shift.value for one in shifts]
    x = frame.x(*padded(min(*values, -reach, 0.0), max(*values, reach, 0.0), share=0.06))
    key = f"shift-{place.key}-{PATHS[yardstick.name][0]}".replace("_", "-")
    title = f"{place.group.case}: {yardstick.name}"
    unit = f", {yardstick.unit.strip()}" if yardstick.unit else ""
    body = [axes(frame, x, None, x_title=f"shift from the reference{unit}")]
    if reach:
        left, right = x(-reach), x(reach)
        body.append(
            Markup('<rect class="null" x="{}" y="{}" width="{}" height="{}"/>').format(
                *(f"{v:.1f}" for v in (left, frame.top, right - left, frame.height - frame.bottom - frame.top))
            )
        )
    at = f"{x(0.0):.1f}"
    end = f"{frame.height - frame.bottom:.1f}"
    body.append(Markup('<line class="one" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(at, at, frame.top, end))
    tips = []
    for number, one in enumerate(shifts):
        tip = f"{key}-{number}"
        judged = "worse than chance" if one.worse else "beyond chance" if one.beyond else "within chance"
        lines: list[tuple[str, Figure | Ranged | str]] = [
            (yardstick.name, one.value),
            ("shift from the reference", one.shift),
        ]
        if one.row.role != "noise_floor":
            lines.append(("judged", judged))
        tips.append((tip, one.row, lines))
        body.append(_dot(one, x(one.shift.value), frame, number, tip, palette.css(one.row.fix)))
    words = f"{place.title}: {yardstick.name}, shift from the reference"
    svg = chart(frame, Markup("").join(body), title=words, key=key, x=x, kind="points")
    return Chart(key=key, title=title, svg=svg, tips=tuple(tips))


def _value(row: Row | None, path: tuple[str, ...], yardstick: Yardstick) -> Figure | None:
    record = None if row is None else record_of(row, "audio")
    return figure(record, *path, write=lambda value: fixed(value, decimals=yardstick.decimals) + yardstick.unit)


def _bar(row: Row, x: Scale, top: float, scale: float, tip: str, css: str) -> Markup:
    stored, extra = memory_bytes(row) or (0.0, 0.0)
    ends = [x(0.0), x(stored / scale), x((stored + extra) / scale)]
    total = memory_of(row)
    box = Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>')
    boxes = [
        box.format(name, f"{a:.2f}", f"{top + 5:.1f}", f"{b - a:.2f}", "16")
        for name, a, b in (("stored", ends[0], ends[1]), ("extra", ends[1], ends[2]))
    ]
    middle = f"{top + 17:.1f}"
    label = label_of(row.fix)
    return Markup(
        '<g class="mark bar {}" data-fix="{}" data-tip="{}" data-at="{} {}" role="img" aria-label="{}" '
        'aria-describedby="{}" tabindex="-1"><rect class="hit" x="0" y="{}" width="430" height="{}"/>'
        '<text class="name" x="{}" y="{}" text-anchor="end">{}</text>{}<text class="name" x="{}" y="{}">{}</text></g>'
    ).format(
        css, row.fix, tip, f"{ends[2]:.2f}", f"{top + 13:.1f}", label, tip, f"{top:.1f}", _ROW_PX,
        f"{x.start - 6:.1f}", middle, label, Markup("").join(boxes),
        f"{ends[2] + 5:.1f}", middle, "" if total is None else total.tspan,
    )  # fmt: skip


def _dot(one: Shift, x: float, frame: Frame, number: int, tip: str, css: str) -> Markup:
    y = frame.top + _ROW_PX * (number + 0.5)
    label = label_of(one.row.fix)
    return Markup(
        '<g class="mark {}" data-fix="{}" data-tip="{}" data-at="{} {}" role="img" aria-label="{}" '
        'aria-describedby="{}" tabindex="-1"><rect class="hit" x="0" y="{}" width="430" height="{}"/>'
        '<text class="name" x="{}" y="{}" text-anchor="end">{}</text>{}'
        '<text class="name" x="{}" y="{}">{}</text></g>'
    ).format(
        css, one.row.fix, tip, f"{x:.2f}", f"{y:.2f}", label, tip, f"{y - _ROW_PX / 2:.1f}", _ROW_PX,
        f"{frame.left - 8:.1f}", f"{y + 4:.1f}", label, marker(one.row.fix, x, y, 5.5),
        f"{frame.width - frame.right + 6:.1f}", f"{y + 4:.1f}", one.shift.tspan,
    )  # fmt: skip
