"""What a report says of one fix in one group: columns of its tables, lines at its marks in the HTML report.

Conventions: a cell is text, the same in a terminal, Markdown and HTML, or None where nothing was measured. In HTML each
number of a :class:`FactText` names the records and the JSON pointers (RFC 6901) that it comes from. Columns that no
row can fill are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from precision_eval.core.formatting import (
    METRIC_TITLES,
    MISSING,
    duration_text,
    fixed,
    memory_text,
    percent,
    scientific,
    status_text,
)
from precision_eval.core.records import Record
from precision_eval.core.table import Code, Table
from precision_eval.results.model import DRIFTS, Group, Row, figure_of, is_identical

Write = Callable[[float], str]

WHOLE_FILE_METRICS = ("si_sdr_db",)
"""Given for the whole file: identical windows make their mean infinite."""

_DTYPES = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_MOST_CASTS = 4


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One number of a report."""

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


class FactText(str):
    """Text of a table's cell, made of figures and of words between them."""

    parts: tuple[Figure | str, ...]

    def __new__(cls, *parts: Figure | str) -> FactText:
        cell = super().__new__(cls, "".join(part if isinstance(part, str) else part.text for part in parts))
        cell.parts = parts
        return cell

    def __html__(self) -> Markup:
        """Name the origin of each number; what stands in brackets is faint."""
        bracket = next((i for i, part in enumerate(self.parts) if part in (" [", " (")), len(self.parts))
        aside = Markup('<span class="ci">{}</span>').format(Markup("").join(self.parts[bracket:]))
        return Markup("").join(self.parts[:bracket]) + (aside if bracket < len(self.parts) else "")


Line = tuple[str, FactText | Figure | str]
"""A fact's heading, and its cell."""


def figure(record: Record | None, *path: str, write: Write, root: str = "data") -> Figure | None:
    """Return the number at a path of a record, or None where there is no finite one."""
    content: Mapping[str, Any] | None = None if record is None else getattr(record, root)
    value = figure_of(content, *path)
    if record is None or value is None:
        return None
    return Figure(value=value, text=write(value), records=(record.cell,), paths=(pointer(root, *path),))


def ranged(record: Record | None, middle: tuple[str, ...], low: str, high: str, *, write: Write) -> FactText | None:
    """Return ``0.83 [0.82, 0.84]``, or the number alone where either end of its interval is missing."""
    value = figure(record, *middle, write=write)
    ends = [figure(record, *middle[:-1], name, write=write) for name in (low, high)]
    if value is None:
        return None
    return FactText(value) if ends[0] is None or ends[1] is None else FactText(value, " [", ends[0], ", ", ends[1], "]")


def mean_difference(record: Record | None, reference: Record | None, *path: str, write: Write) -> Figure:
    """Return the mean of a list of one record minus that of another's."""
    assert record is not None
    assert reference is not None
    means = []
    for one in (record, reference):
        values: Any = one.data
        for name in path:
            values = values[name]
        means.append(sum(values) / len(values))
    value = means[0] - means[1]
    place = pointer("data", *path)
    records = (record.cell, reference.cell)
    return Figure(value=value, text=write(value), records=records, paths=(place, place), operation="mean_difference")


def pointer(*path: str | int) -> str:
    """Return a JSON pointer: ``/data/ulp_quantiles/0.5``."""
    return "".join(f"/{str(name).replace('~', '~0').replace('/', '~1')}" for name in path)


def record_of(row: Row, *measures: str) -> Record | None:
    """Return the first of these measures that passed."""
    return next((row.records[name] for name in measures if row.data(name) is not None), None)


def time_of(row: Row) -> FactText | None:
    """Return the latency ratio with its interval; the baseline's, marked A/A, is that of its twin."""
    ratio = ranged(record_of(row, "latency"), ("ratio",), "ratio_low", "ratio_high", write=_three)
    is_baseline = (row.data("latency") or {}).get("baseline") == row.fix
    return FactText("A/A ", *ratio.parts) if ratio is not None and is_baseline else ratio


def drift_of(row: Row) -> FactText | None:
    """Return the relative error to float64, with its interval where there are several streams."""
    names = ("relative_error_low", "relative_error_high")
    return ranged(record_of(row, *DRIFTS), ("relative_error",), *names, write=scientific)


def memory_parts(row: Row) -> tuple[Figure, Figure] | None:
    """Return storage, and what a call allocates on top at its peak."""
    return _pair(record_of(row, "memory"), "storage_bytes", "allocated_peak_bytes", write=memory_text)


def _pair(record: Record | None, *names: str, write: Write) -> tuple[Figure, Figure] | None:
    """Return two figures of a record, or None where either is missing."""
    first, second = (figure(record, name, write=write) for name in names)
    return None if first is None or second is None else (first, second)


def memory_of(row: Row) -> Figure | None:
    """Return storage and peak of a call together."""
    parts = memory_parts(row)
    if parts is None:
        return None
    total, records = sum(part.value for part in parts), tuple(name for part in parts for name in part.records)
    paths = tuple(path for part in parts for path in part.paths)
    return Figure(value=total, text=memory_text(total), records=records, paths=paths, operation="sum")


def diverged_of(row: Row) -> tuple[Figure, Figure] | None:
    """Return how many streams left the reference's tokens, and of how many."""
    return _pair(record_of(row, "divergence"), "diverged", "streams", write=_whole)


def sound_of(row: Row) -> Figure | None:
    """Return the distance of the audio to the reference's as a ratio to the noise floor's."""
    path = ("against_reference", "mel_mcd_db", "ratio_to_null")
    return figure(record_of(row, "audio"), *path, write=lambda ratio: f"× {ratio:.2f}")


def dtype_name(name: Any) -> str:
    """Return a dtype in short, such as ``bf16``."""
    return _DTYPES.get(str(name), str(name))


def operands_text(call: Mapping[str, Any]) -> str:
    """Write the dtypes that a call of attention ran with: ``f16 / f16 / f16 → f16``."""
    operands = " / ".join(dtype_name(call.get(name)) for name in ("query", "key", "value"))
    return f"{operands} → {dtype_name(call.get('output'))}"


def cast_text(cast: Mapping[str, Any]) -> str:
    """Write a cast: ``key f16→f32``."""
    operand = cast.get("operand", cast.get("site", "?"))
    return f"{operand} {dtype_name(cast.get('from'))}→{dtype_name(cast.get('to'))}"


def _operands(row: Row, *, counted: bool = False) -> str | None:
    calls = (row.data("trace") or {}).get("sdpa") or ()
    counts = [f" ×{call['count']}" if counted and call.get("count") not in (None, 1) else "" for call in calls]
    texts = [operands_text(call) + count for call, count in zip(calls, counts, strict=True)]
    return "; ".join(dict.fromkeys(texts)) or None


def _linear(row: Row, section: Group) -> str | None:
    calls = (row.data("trace") or {}).get("linear") or ()
    texts = (f"{dtype_name(call.get('input', '?'))} · {dtype_name(call.get('weight', '?'))}" for call in calls)
    return "; ".join(dict.fromkeys(texts)) or None


def _casts(row: Row, *, counted: bool = False) -> str | None:
    """Name the first casts of a call; the HTML report has no number that no record holds, and so no counts."""
    casts = (row.data("trace") or {}).get("casts") or ()
    if not counted:
        named = list(dict.fromkeys(map(cast_text, casts)))
        return ", ".join(named[:_MOST_CASTS]) + (", …" if len(named) > _MOST_CASTS else "") if named else None
    texts = [f"{cast_text(cast)} ×{cast.get('count', 1)}" for cast in casts]
    rest = len(texts) - _MOST_CASTS
    return "; ".join(texts[:_MOST_CASTS] + ([f"and {rest} more"] if rest > 0 else [])) or None


def _word(measure: str, name: str) -> Callable[[Row, Group], str | None]:
    return lambda row, section: None if (word := (row.data(measure) or {}).get(name)) is None else str(word)


def _joined(parts: tuple[Figure, Figure] | None, between: str) -> FactText | None:
    return None if parts is None else FactText(parts[0], between, parts[1])


def _distance(against: str, metric: str) -> Callable[[Row, Group], FactText | str | None]:
    """Mean over windows; the whole file's value where the metric is a ratio of energies, or has no mean."""

    def read(row: Row, section: Group) -> FactText | str | None:
        record = record_of(row, "audio")
        mean, whole = (figure(record, against, metric, name, write=_two) for name in ("mean", "whole_file"))
        value = whole if mean is None or (metric in WHOLE_FILE_METRICS and whole is not None) else mean
        if against != "against_reference":
            return None if value is None else FactText(value)
        if value is None:
            return "identical" if is_identical(row) else None
        ratio = figure(record, against, metric, "ratio_to_null", write=lambda times: f"× {times:.2f}")
        return FactText(value) if ratio is None else FactText(value, " (", ratio, ")")

    return read


def _phonemes(row: Row, section: Group) -> FactText | None:
    record = record_of(row, "audio")
    names = ("value", "first_third", "last_third")
    value, first, last = (figure(record, "phoneme_accuracy", name, write=_three) for name in names)
    if first is None or last is None:
        return None if value is None else FactText(value)
    return FactText(first, " → ", last) if value is None else FactText(value, " (", first, " → ", last, ")")


def _two(value: float) -> str:
    return fixed(value, decimals=2)


def _three(value: float) -> str:
    return fixed(value, decimals=3)


def _whole(value: float) -> str:
    return f"{value:.0f}"


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One column: its heading in text and in the HTML report, empty where it is left out there, and how it is read."""

    text: str = ""
    page: str = ""
    read: Callable[[Row, Group], FactText | Figure | str | None]


def _of(measure: str, name: str, write: Write) -> Callable[[Row, Group], Figure | None]:
    return lambda row, section: figure(record_of(row, measure), name, write=write)


def _heard_otherwise(row: Row) -> FactText | None:
    return _joined(_pair(record_of(row, "transcription"), "diverged", "utterances", write=_whole), "/")


def _share_of_words(name: str) -> Callable[[Row, Group], FactText | None]:
    return lambda row, section: ranged(
        record_of(row, "transcription"), (name,), f"{name}_low", f"{name}_high", write=lambda x: percent(x, decimals=2)
    )


_KL = (("kl_nats",), "kl_nats_low", "kl_nats_high")


def _status(row: Row, section: Group) -> str:
    return row.status + (" *" if row.incomplete else "")


_STORED, _EFFECT = "storage + peak extra", "minimum_detectable_effect"

COSTS: tuple[Fact, ...] = (
    Fact(text="status", read=_status),
    Fact(page="status", read=lambda row, section: status_text(_status(row, section))),
    Fact(text="latency ratio", page="latency ratio", read=lambda row, section: time_of(row)),
    Fact(text="verdict", page="verdict", read=lambda row, section: section.verdict_text(row) or None),
    Fact(text="MDE", page="smallest effect it would see", read=_of("latency", _EFFECT, percent)),
    Fact(text="median", page="median of a call", read=_of("latency", "median_s", duration_text)),
    Fact(text=_STORED, page=_STORED, read=lambda row, section: _joined(memory_parts(row), " + ")),
    Fact(page="memory, all", read=lambda row, section: memory_of(row)),
    Fact(text="drift", page="drift", read=lambda row, section: drift_of(row)),
    Fact(text="KL, nats", read=lambda row, section: figure(record_of(row, *DRIFTS), "kl_nats", write=scientific)),
    Fact(page="KL, nats", read=lambda row, section: ranged(record_of(row, *DRIFTS), *_KL, write=scientific)),
    Fact(text="diverged", page="streams diverged", read=lambda row, section: _joined(diverged_of(row), "/")),
    Fact(
        text="tokens diverged", page="utterances whose tokens diverged", read=lambda row, section: _heard_otherwise(row)
    ),
    Fact(text="WER", page="WER", read=_of("transcription", "wer", percent)),
    *(
        Fact(text=title, page=title, read=_share_of_words(name))
        for title, name in (("words off float64's", "word_divergence"), ("WER − float64's", "wer_difference"))
    ),
    Fact(page="sound, × noise floor", read=lambda row, section: sound_of(row)),
    Fact(page="attention ran in", read=lambda row, section: _operands(row)),
    Fact(page="backend", read=_word("trace", "backend")),
    Fact(page="casts of a call", read=lambda row, section: _casts(row)),
    Fact(page="clock", read=_word("latency", "clock")),
    Fact(page="blocks", read=_of("latency", "blocks", _whole)),
)
"""Of a fix in a group, in their order."""

TRACED: tuple[Fact, ...] = (
    Fact(text="attention: query / key / value → output", read=lambda row, section: _operands(row, counted=True)),
    Fact(text="backend", read=_word("trace", "backend")),
    Fact(text="linear: input · weight", read=_linear),
    Fact(text="casts per call", read=lambda row, section: _casts(row, counted=True)),
)
"""What really ran."""

_SLOPE = ("against_original", "mel_mcd_db", "slope_per_min")

SOUND: tuple[Fact, ...] = (
    *(
        Fact(text=title, page=title, read=_distance("against_reference", metric))
        for metric in METRIC_TITLES
        for title in (f"{METRIC_TITLES[metric][0]} to reference, dB",)
    ),
    Fact(text="MCD to original, dB", page="MCD to original, dB", read=_distance("against_original", "mel_mcd_db")),
    Fact(
        text="its slope, dB/min",
        page="its slope, dB/min",
        read=lambda row, section: ranged(record_of(row, "audio"), _SLOPE, "slope_low", "slope_high", write=_two),
    ),
    Fact(text="phonemes right (thirds 1 → 3)", page="phonemes right (thirds 1 → 3)", read=_phonemes),
)


def fact_table(
    section: Group,
    rows: Sequence[Row],
    facts: Sequence[Fact],
    *,
    title: str,
    notes: Sequence[str] = (),
    page: bool = False,
    headings: Mapping[str, str] | None = None,
) -> Table:
    """Return facts as a table, for text or for the HTML report; `headings` replaces some of them."""
    named = [(fact, name) for fact in facts if (name := fact.page if page else fact.text)]
    cells = [(name, [fact.read(row, section) for row in rows]) for fact, name in named]
    kept = [(name, column) for name, column in cells if any(cell not in (None, MISSING) for cell in column)]
    return Table(
        title=title,
        columns=("fix", *((headings or {}).get(name, name) for name, _ in kept)),
        rows=tuple((Code(row.fix), *(_cell(column[i]) for _, column in kept)) for i, row in enumerate(rows)),
        kinds=tuple(_kind(row) for row in rows),
        notes=tuple(notes),
    )


def _cell(cell: FactText | Figure | str | None) -> str:
    return FactText(cell) if isinstance(cell, Figure) else MISSING if cell is None else cell


def _kind(row: Row) -> str:
    if row.role != "fix":
        return "reference"
    return "passed" if row.status == "passed" else "failed"


def lines_of(row: Row, section: Group) -> list[Line]:
    """Return every fact but the status that was recorded of a row, with its heading in the HTML report."""
    cells = [(fact.page, fact.read(row, section)) for fact in COSTS if fact.page not in ("", "status")]
    return [(title, cell) for title, cell in cells if cell is not None]
