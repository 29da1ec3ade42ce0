"""What the HTML report says of one fix in one group: the columns of its tables, and the lines shown at its marks.

Conventions: a cell is a :class:`Figure` or a :class:`Ranged`, which name the records and the JSON pointers (RFC 6901)
that their numbers come from, words, or None where nothing was
measured. Columns that no row can fill are left out by the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from precision_eval.core.formatting import duration_text, fixed, memory_text, percent, scientific
from precision_eval.core.records import Record
from precision_eval.results.model import Group, Row, figure_of

Write = Callable[[float], str]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One number of the HTML report."""

    value: float
    text: str
    records: tuple[str, ...]
    paths: tuple[str, ...]
    operation: str = ""

    @property
    def attributes(self) -> Markup:
        """The attributes that name the origin, for an element of HTML or SVG."""
        made = Markup(' data-op="{}"').format(self.operation) if self.operation else Markup("")
        return (
            Markup('data-v="{}" data-record="{}" data-path="{}"').format(
                repr(self.value), " ".join(self.records), " ".join(self.paths)
            )
            + made
        )

    def __html__(self) -> Markup:
        return Markup("<span {}>{}</span>").format(self.attributes, self.text)

    @property
    def tspan(self) -> Markup:
        """The same inside SVG text."""
        return Markup("<tspan {}>{}</tspan>").format(self.attributes, self.text)


@dataclass(frozen=True, kw_only=True)
class Ranged:
    """A number with its interval; either end may be missing."""

    middle: Figure
    low: Figure | None = None
    high: Figure | None = None

    @property
    def text(self) -> str:
        """Text such as ``0.83 [0.82, 0.84]``."""
        ends = "" if self.low is None or self.high is None else f" [{self.low.text}, {self.high.text}]"
        return self.middle.text + ends

    def __html__(self) -> Markup:
        if self.low is None or self.high is None:
            return escape(self.middle)
        return Markup('{} <span class="ci">[{}, {}]</span>').format(self.middle, self.low, self.high)


def figure(record: Record | None, *path: str, write: Write, root: str = "data") -> Figure | None:
    """Return the number at a path of a record, or None where there is no finite one."""
    content: Mapping[str, Any] | None = None if record is None else getattr(record, root)
    value = figure_of(content, *path)
    if record is None or value is None:
        return None
    return Figure(value=value, text=write(value), records=(record.cell,), paths=(pointer(root, *path),))


def ranged(record: Record | None, middle: tuple[str, ...], low: str, high: str, *, write: Write) -> Ranged | None:
    """Return a number with the interval that stands beside it under other names."""
    found = figure(record, *middle, write=write)
    if found is None:
        return None
    ends = [figure(record, *middle[:-1], name, write=write) for name in (low, high)]
    return Ranged(middle=found, low=ends[0], high=ends[1])


def combined(operation: str, first: Figure, second: Figure, *, write: Write) -> Figure:
    """Return the sum or difference of two figures."""
    value = first.value + second.value if operation == "sum" else first.value - second.value
    return Figure(
        value=value,
        text=write(value),
        records=first.records + second.records,
        paths=first.paths + second.paths,
        operation=operation,
    )


def pointer(*path: str | int) -> str:
    """Return a JSON pointer: ``/data/ulp_quantiles/0.5``."""
    return "".join(f"/{str(name).replace('~', '~0').replace('/', '~1')}" for name in path)


Cell = Figure | Ranged | str | None

_DRIFTS = ("teacher_forced_drift", "drift")
_DTYPES = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_MOST_CASTS = 4


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One column."""

    key: str
    title: str
    read: Callable[[Row, Group], Cell]


def record_of(row: Row, *measures: str) -> Record | None:
    """Return the first of these measures that passed."""
    for name in measures:
        if row.data(name) is not None:
            return row.records[name]
    return None


def time_of(row: Row) -> Ranged | None:
    """Return the latency ratio with its interval; the baseline's is that of its twin."""
    return ranged(record_of(row, "latency"), ("ratio",), "ratio_low", "ratio_high", write=_three)


def drift_of(row: Row) -> Ranged | None:
    """Return the relative error to float64, with its interval where there are several streams."""
    names = ("relative_error_low", "relative_error_high")
    return ranged(record_of(row, *_DRIFTS), ("relative_error",), *names, write=scientific)


def memory_of(row: Row) -> Figure | None:
    """Return storage and peak of a call together."""
    record = record_of(row, "memory")
    peak, stored = (figure(record, name, write=memory_text) for name in ("allocated_peak_bytes", "storage_bytes"))
    if peak is None or stored is None:
        return peak
    return combined("sum", stored, peak, write=memory_text)


def diverged_of(row: Row) -> tuple[Figure, Figure] | None:
    """Return how many streams left the reference's tokens, and of how many."""
    record = record_of(row, "divergence")
    found = [figure(record, name, write=_whole) for name in ("diverged", "streams")]
    return None if found[0] is None or found[1] is None else (found[0], found[1])


def sound_of(row: Row) -> Figure | None:
    """Return the distance of the audio to the reference's as a ratio to the noise floor's."""
    return figure(record_of(row, "audio"), "against_reference", "mel_mcd_db", "ratio_to_null", write=_times)


def operands_of(row: Row) -> str | None:
    """Return the dtypes that attention really ran with: ``f16 / f16 / f16 → f16``."""
    calls = (row.data("trace") or {}).get("sdpa") or ()
    kinds = [f"{' / '.join(_dtype(call, one) for one in ('query', 'key', 'value'))} → {_dtype(call, 'output')}"
             for call in calls]  # fmt: skip
    return "; ".join(dict.fromkeys(kinds)) or None


def casts_of(row: Row) -> str | None:
    """Return the casts of a call, the first few."""
    casts: Sequence[dict[str, Any]] = (row.data("trace") or {}).get("casts") or ()
    kinds = [
        f"{cast.get('operand', cast.get('site', '?'))} {_dtype(cast, 'from')}→{_dtype(cast, 'to')}" for cast in casts
    ]
    named = list(dict.fromkeys(kinds))
    return ", ".join(named[:_MOST_CASTS]) + (", …" if len(named) > _MOST_CASTS else "") if named else None


def _ratio_cell(row: Row, section: Group) -> Cell:
    return time_of(row)


def _verdict_cell(row: Row, section: Group) -> Cell:
    if not row.data("latency"):
        return None
    return f"{'against itself: ' if section.is_baseline(row) else ''}{section.verdict_of(row)}"


def _clock(row: Row, section: Group) -> Cell:
    clock = (row.data("latency") or {}).get("clock")
    return None if clock is None else str(clock)


def _of(name: str, *measures: str, write: Callable[[float], str]) -> Callable[[Row, Group], Cell]:
    return lambda row, section: figure(record_of(row, *measures), name, write=write)


def _kl(row: Row, section: Group) -> Cell:
    return ranged(record_of(row, *_DRIFTS), ("kl_nats",), "kl_nats_low", "kl_nats_high", write=scientific)


def _share(row: Row, section: Group) -> Cell:
    found = diverged_of(row)
    return None if found is None else found[0]


def _three(value: float) -> str:
    return fixed(value, decimals=3)


def _times(value: float) -> str:
    return f"× {value:.2f}"


def _whole(value: float) -> str:
    return f"{value:.0f}"


def _dtype(call: dict[str, Any], name: str) -> str:
    found = str(call.get(name))
    return _DTYPES.get(found, found)


_EFFECT, _PEAK = "minimum_detectable_effect", "allocated_peak_bytes"

COSTS: tuple[Fact, ...] = (
    Fact(key="time", title="latency ratio", read=_ratio_cell),
    Fact(key="verdict", title="verdict", read=_verdict_cell),
    Fact(key="mde", title="smallest effect it would see", read=_of(_EFFECT, "latency", write=percent)),
    Fact(key="median", title="median of a call", read=_of("median_s", "latency", write=duration_text)),
    Fact(key="drift", title="drift", read=lambda row, section: drift_of(row)),
    Fact(key="kl", title="KL, nats", read=_kl),
    Fact(key="memory", title="memory, all", read=lambda row, section: memory_of(row)),
    Fact(key="stored", title="stored", read=_of("storage_bytes", "memory", write=memory_text)),
    Fact(key="peak", title="extra at the peak of a call", read=_of(_PEAK, "memory", write=memory_text)),
    Fact(key="diverged", title="streams diverged", read=_share),
    Fact(key="streams", title="of streams", read=_of("streams", "divergence", write=_whole)),
    Fact(key="sound", title="sound, × noise floor", read=lambda row, section: sound_of(row)),
    Fact(key="operands", title="attention ran in", read=lambda row, section: operands_of(row)),
    Fact(key="backend", title="backend", read=lambda row, section: _text(row, "backend")),
    Fact(key="casts", title="casts of a call", read=lambda row, section: casts_of(row)),
    Fact(key="clock", title="clock", read=_clock),
    Fact(key="blocks", title="blocks", read=_of("blocks", "latency", write=_whole)),
)  # fmt: skip
"""Of a fix in a group, in the order in which they are shown."""


def _text(row: Row, name: str) -> str | None:
    found = (row.data("trace") or {}).get(name)
    return None if found is None else str(found)


def lines_of(row: Row, section: Group) -> list[tuple[str, Figure | Ranged | str]]:
    """Return every fact that was recorded of a row, with its title."""
    found = [(fact.title, fact.read(row, section)) for fact in COSTS]
    return [(title, cell) for title, cell in found if cell is not None]
