"""The tables of a report, one function each: typed cells that the terminal, Markdown, HTML and CSV all write.

A column that no row can fill is left out. Doubts and messages are marks at the cells they belong to; the texts are the
report's :class:`~precision_eval.report.doubts.Footnotes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from precision_eval.core.figures import AudioFigures, Figures, MetricFigures
from precision_eval.core.formatting import (
    METRIC_TITLES,
    MISSING,
    duration_text,
    estimate,
    fixed,
    memory_text,
    percent,
    ratio_text,
    scientific,
    status_text,
)
from precision_eval.core.removed import MEASURES as REMOVED_MEASURES
from precision_eval.core.table import FigureCell, Strong, Table, make_table, without_empty_columns
from precision_eval.measure.registry import MEASURES
from precision_eval.report.choice_text import COULD_NOT_TELL
from precision_eval.report.doubts import (
    Footnotes,
    drift_doubts,
    shared_doubts,
    sound_doubts,
    status_notes,
    time_doubts,
)
from precision_eval.results.choose.choosing import Choice, choices_of
from precision_eval.results.model import Group, Row, exact, is_identical
from precision_eval.results.reading import Run, ratio_estimate
from precision_eval.results.sound import SOUND_METRICS

IDENTITY = ("case", "size", "mode", "device", "pins", "threads", "fix", "role", "status", "reason")
"""First columns of ``results.csv``."""

PARTS = {
    "input_cast_mse": "input cast, %",
    "compute_mse": "compute, %",
    "output_rounding_mse": "output rounding, %",
    "cross_mse": "cross-term, %",
}
"""Key of a part of the drift in the records, and its heading; with the cross-term they add up to 100."""

_DTYPES = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_WORDS = {"equivalent": "same", "noise floor off": "noisy"}
_MOST_CASTS = 4


@dataclass(frozen=True, kw_only=True)
class AnsweredGroup:
    """A group with the fix to take in it; without one where nothing cures, or a measure is missing."""

    group: Group
    choice: Choice | None

    @property
    def pick(self) -> str | None:
        """The fix with the best balance of time and drift."""
        return None if self.choice is None else self.choice.fix

    @property
    def ties(self) -> tuple[str, ...]:
        """Fixes that are not told apart from the pick."""
        return () if self.choice is None or self.choice.fix is None else self.choice.tied[1:]

    @property
    def headline(self) -> str:
        where = self.group.title.replace(" · ", " ", 2).removesuffix(", 1 thread")
        if self.group.fault:
            return f"{where}: {self.group.fault}"
        if self.pick is None:
            return f"{where}: {COULD_NOT_TELL}" if self.choice is not None and self.choice.untold else where
        return f"{where}: take {' ≈ '.join((self.pick, *self.ties))}"

    @property
    def rows(self) -> tuple[Row, ...]:
        """The fixes that run in order of preference, then those that do not, by status."""
        ranked = () if self.choice is None else (*self.choice.tied, *self.choice.runners_up)
        order = {fix: number for number, fix in enumerate(ranked)}
        curing = sorted(self.group.curing, key=lambda row: order.get(row.fix, len(order)))
        failing = [self.group.row(fix) for fixes in self.group.failing_by_status.values() for fix in fixes]
        return (*curing, *failing)


def answer_of(group: Group) -> AnsweredGroup:
    """Return a group with what the balanced policy takes in it."""
    choice = choices_of(group)["balanced"] if group.curing else ""
    return AnsweredGroup(group=group, choice=choice if isinstance(choice, Choice) else None)


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column: its heading, and how its cell is read from a row; `short` ones are in the terminal's table too."""

    heading: str
    read: Callable[[Row], str | None]
    short: bool = False


def group_table(answer: AnsweredGroup, notes: Footnotes, *, short: bool = False) -> Table:
    """Return what each fix costs in a group, the pick first; not `short`, with every figure and what really ran.

    A `short` one has the fixes that run alone, and marks ties in the rows alone.
    """
    group, shared = answer.group, shared_doubts(answer.group)
    headline = answer.headline.partition(" ≈ ")[0] if short else answer.headline
    title = headline + notes.mark([*shared, *(f"{note}." for note in group.notes)])
    columns = [column for column in _columns(group, notes, shared, short) if column.short or not short]
    rows = [row for row in answer.rows if not short or row.status == "passed"]
    if not short:
        rows += [row for row in group.rows if row.role != "fix" and (row.errors or row.divergence)]
    cells = [(_name(answer, row), *(column.read(row) or MISSING for column in columns)) for row in rows]
    table = Table(
        title=title,
        columns=("fix", *(column.heading for column in columns)),
        rows=tuple(cells),
        kinds=tuple(_kind(answer, row) for row in rows),
        align="ll" + "r" * (len(columns) - 1),
    )
    return without_empty_columns(table)


def _name(answer: AnsweredGroup, row: Row) -> str:
    return Strong(row.fix) if row.fix == answer.pick else f"≈ {row.fix}" if row.fix in answer.ties else row.fix


def _kind(answer: AnsweredGroup, row: Row) -> str:
    if row.role != "fix":
        return "reference"
    if row.fix == answer.pick:
        return "chosen"
    return "passed" if row.status == "passed" else "failed"


def _columns(group: Group, notes: Footnotes, shared: Sequence[str], short: bool) -> list[Column]:
    def marks(texts: Sequence[str]) -> str:
        return notes.mark(text for text in texts if text not in shared)

    return [
        Column(heading="result", read=lambda row: _result(group, row) + notes.mark(status_notes(row)), short=True),
        Column(
            heading=f"{group.clock} time ratio {confidence_text(group)}".lstrip(),
            read=lambda row: time_cell(group, row, marks(time_doubts(row.latency))),
            short=True,
        ),
        Column(
            heading="launched ratio",
            read=lambda row: launched_cell(group, row, marks(time_doubts(row.latency and row.latency.launched))),
            short=True,
        ),
        Column(heading="MDE", read=lambda row: _number(row.latency, "minimum_detectable_effect", percent)),
        Column(heading="call", read=lambda row: number_cell(row.median_s, duration_text)),
        Column(heading="stored", read=lambda row: number_cell(row.stored_bytes, memory_text)),
        Column(heading="memory", read=memory_cell, short=True),
        Column(heading="reserved", read=lambda row: _number(row.memory, "reserved_bytes", memory_text)),
        Column(
            heading="drift",
            read=lambda row: drift_cell(row, marks(drift_doubts(row)), interval=not short),
            short=True,
        ),
        Column(heading="KL, nats", read=lambda row: _number(row.errors, "kl_nats", scientific)),
        *(Column(heading=heading, read=_share(name)) for name, heading in PARTS.items()),
        Column(heading="diverged", read=lambda row: None if row.diverged is None else f"{row.diverged}/{row.streams}"),
        Column(heading="sound", read=lambda row: None if row.sound is None else row.sound.verdict, short=True),
        *(Column(heading=".".join(path), read=_plugin_reader(path), short=True) for path in plugin_figures(group)),
        Column(heading="attention ran in", read=_operands),
        Column(heading="backend", read=lambda row: row.trace.backend if row.trace else None),
        Column(heading="casts of a call", read=_casts),
    ]


def _result(group: Group, row: Row) -> str:
    if row.status != "passed":
        return status_text(row.status)
    if group.is_baseline(row):
        return "baseline"
    verdict = group.verdict_of(row) or "passed"
    return _WORDS.get(verdict, verdict)


def number_cell(value: float | None, write: Callable[[float], str], note: str = "") -> FigureCell | None:
    """Return a number as a cell; None where there is none."""
    return None if value is None else FigureCell(write(value), value=value, note=note)


def _number(figures: Figures | None, name: str, write: Callable[[float], str]) -> FigureCell | None:
    return number_cell(getattr(figures, name, None), write)


def time_cell(group: Group, row: Row, note: str = "") -> FigureCell | None:
    """Return the ratio to the baseline's time; the baseline's own interval is that of the A/A check."""
    interval = group.time_interval(row)
    if interval is None:
        return None
    value, low, high = interval
    text = "1" if low == high == 1.0 else ratio_text(value, low, high)
    return FigureCell(text, value=value, low=low, high=high, note=note)


def launched_cell(group: Group, row: Row, note: str = "") -> FigureCell | None:
    """Return the ratio of calls launched from Python, where the device's time was measured too."""
    if row.latency is None or row.latency.launched is None:
        return None
    launched = exact(1.0) if group.is_baseline(row) else ratio_estimate(row.latency.launched)
    text = "1" if group.is_baseline(row) else ratio_text(launched.value, launched.low, launched.high)
    return FigureCell(text, value=launched.value, low=launched.low, high=launched.high, note=note)


def drift_cell(row: Row, note: str = "", *, interval: bool = True) -> FigureCell | None:
    """Return the relative error to float64, with its interval where several inputs gave one."""
    if row.drift is None:
        return None
    value, low, high = row.drift.value, row.drift.low, row.drift.high
    if not row.paired_drift or not interval:
        return number_cell(value, scientific, note)
    return FigureCell(estimate(value, low, high, write=scientific), value=value, low=low, high=high, note=note)


def memory_cell(row: Row) -> FigureCell | None:
    """Return what is stored and what a call allocates on top at its peak, together."""
    return number_cell(row.memory_bytes, memory_text)


def _share(name: str) -> Callable[[Row], str | None]:
    """Return what reads a part of a drift in per cent of its mean square error."""

    def read(row: Row) -> str | None:
        split = row.errors.split if row.errors else None
        total, part = (getattr(split, key, None) for key in ("total_mse", name))
        return number_cell(100.0 * part / total, _whole) if total and part is not None else None

    return read


def _whole(value: float) -> str:
    return fixed(value, decimals=0)


def plugin_figures(group: Group) -> tuple[tuple[str, ...], ...]:
    """Return the paths, the measure first, of the figures of measures that installed packages gave."""
    shipped = {measure.name for measure in MEASURES} | set(REMOVED_MEASURES)
    return tuple(
        dict.fromkeys(
            (measure, *name.split("."))
            for row in group.rows
            for measure, record in row.records.items()
            if measure not in shipped
            for name, value in scalars_of(record.data or {})
            if isinstance(value, int | float)
        )
    )


def _plugin_reader(path: tuple[str, ...]) -> Callable[[Row], str | None]:
    measure, *names = path

    def read(row: Row) -> str | None:
        record = row.records.get(measure)
        figures = dict(scalars_of(record.data or {})) if record is not None and record.status == "passed" else {}
        value = figures.get(".".join(names))
        return number_cell(value, "{:.4g}".format) if isinstance(value, int | float) else None

    return read


def dtype_name(name: Any) -> str:
    """Return a dtype in short, such as ``bf16``."""
    return _DTYPES.get(str(name), str(name))


def _operands(row: Row) -> str | None:
    """Write the dtypes that attention ran with: ``f16 / f16 / f16 → f16``."""
    calls = row.trace.sdpa if row.trace else ()
    texts = (
        f"{' / '.join(dtype_name(call.get(name)) for name in ('query', 'key', 'value'))}"
        f" → {dtype_name(call.get('output'))}"
        for call in calls
    )
    return "; ".join(dict.fromkeys(texts)) or None


def _casts(row: Row) -> str | None:
    """Name the first casts of a call: ``key f16→f32``."""
    casts = row.trace.casts if row.trace else ()
    names = dict.fromkeys(
        f"{cast.operand or cast.site} {dtype_name(cast.source)}→{dtype_name(cast.target)}" for cast in casts
    )
    return ", ".join(list(names)[:_MOST_CASTS]) + (", …" if len(names) > _MOST_CASTS else "") or None


def confidence_text(group: Group) -> str:
    """Return the confidence of the latency intervals, such as ``[95 %]``."""
    level = next((row.latency.confidence for row in group.rows if row.latency and row.latency.confidence), None)
    return "" if level is None else f"[{level * 100:.3g} %]"


def sound_table(run: Run, group: Group) -> Table | None:
    """Return the change of each metric of sound, of fixes and controls; None where no streams were judged."""
    controls = [row for row in run.comparators(group, "sound") if row.role == "control"]
    judged = {row.fix: row.sound for row in (*group.fixes, *controls) if row.sound is not None and row.sound.metrics}
    if not any(row.fix in judged for row in group.fixes):
        return None
    first = next(iter(judged.values()))
    metrics = [metric for metric in SOUND_METRICS if metric.name in first.metrics]
    rows: list[tuple[str, ...]] = [
        (fix, sound.verdict, *(metric.range_text(sound.metrics[metric.name]) for metric in metrics))
        for fix, sound in judged.items()
    ]
    largest = {m.name: max(sound.detectable[m.name] for sound in judged.values()) for m in metrics}
    rows.append(("margin of no worse", MISSING, *(m.text(first.metrics[m.name].margin) for m in metrics)))
    rows.append(("detectable in 80 %", MISSING, *(m.text(largest[m.name]) for m in metrics)))
    return Table(
        title=f"Sound of {first.streams} streams of {first.stream_s:g} s · {group.title}",
        columns=("condition", "verdict", *(metric.title for metric in metrics)),
        rows=tuple(rows),
        kinds=tuple("" if row[0] in judged else "reference" for row in rows),
        align="ll" + "r" * len(metrics),
    )


def recordings_table(run: Run, group: Group, notes: Footnotes) -> Table | None:
    """Return how far each recording lies from the reference's; None where none was measured."""
    fixes = [row for row in group.fixes if row.audio]
    if not fixes:
        return None
    others = [row for row in run.comparators(group, "audio") if row.role != "reference"]
    rows = [(row.fix, *_distances(row, notes.mark(sound_doubts(row)))) for row in (*fixes, *others)]
    names = [f"{short} to reference, {unit}" for short, unit, _ in METRIC_TITLES.values()]
    columns = ("fix", *names, "MCD to original, dB", "phonemes right")
    title = f"Recordings · {group.title}"
    return without_empty_columns(make_table(columns, rows, title=title, align="l" + "r" * (len(columns) - 1)))


def _distances(row: Row, note: str) -> list[str]:
    """Means over windows with the ratio to the noise floor's; SI-SDR, a ratio of energies, of the whole file."""
    audio, cells = row.audio or AudioFigures(), []
    for name in METRIC_TITLES:
        metric: MetricFigures = getattr(audio.against_reference, name)
        value, ratio = metric.whole_file if name == "si_sdr_db" else metric.mean, metric.ratio_to_null
        times = "" if ratio is None else f" (× {ratio:.2f})"
        absent = "identical" if is_identical(row) else MISSING
        cells.append(absent if value is None else FigureCell(f"{value:.2f}{times}", value=value, note=note))
    original = audio.against_original.mel_mcd_db.mean
    cells.append(number_cell(original, lambda value: fixed(value, decimals=2)) or MISSING)
    right = (audio.phoneme_accuracy or {}).get("value")
    return [*cells, number_cell(right, lambda value: fixed(value, decimals=3)) or MISSING]


def results_table(run: Run) -> Table:
    """Return one row per cell with every scalar of its records, for other tools; what was not measured is empty.

    Columns are the cell's identity, its status per measure, then ``measure.path.to.scalar`` with the unit in the name.
    """
    lines = lines_of(run)
    names = dict.fromkeys(name for line in lines for name in line if name not in IDENTITY)
    columns = (*IDENTITY, *sorted(names))
    rows = [["" if line.get(name) is None else str(line[name]) for name in columns] for line in lines]
    return make_table(columns, rows)


def lines_of(run: Run) -> list[dict[str, Any]]:
    """Return one row per fix, reference, noise floor and control of a group: identity, then the figures recorded."""
    return [_line(group, row) for group in run.sections for row in group.rows]


def _line(group: Group, row: Row) -> dict[str, Any]:
    line = {name: getattr(group if hasattr(group, name) else row, name) for name in IDENTITY}
    line["pins"] = group.pins.lstrip(",")
    for measure, record in row.records.items():
        line[f"{measure}.status"] = record.status
        line |= {f"{measure}.{path}": value for path, value in scalars_of(record.data or {})}
    return line


def scalars_of(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the figures of nested data that are no lists, with their paths."""
    for name, value in node.items():
        if isinstance(value, Mapping):
            yield from scalars_of(value, f"{prefix}{name}.")
        elif value is not None and not isinstance(value, list):
            yield f"{prefix}{name}", value
