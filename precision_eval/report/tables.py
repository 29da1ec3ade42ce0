"""The tables of a report: terminal, Markdown and the README share them.

Each section gives a table of costs (status, latency, memory, drift, divergence), a table of what really ran, the parts
of the drift, and, where audio was measured, a table of sound with the reference, the noise floor and both controls
beside the fixes. A column that no row can fill is left out. Parts of a drift are shares of the total mean square error
in per cent; with the cross-term, which may be negative, they add up to 100.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from precision_eval.core.formatting import MISSING, duration_long, fixed, grouped, join, scientific
from precision_eval.core.shapes import DATA as SHAPES
from precision_eval.core.table import Table, make_table, to_csv
from precision_eval.explain.messages import short_reason
from precision_eval.report.facts import COSTS, SOUND, TRACED, Fact, fact_table, figure, record_of
from precision_eval.results.model import Group, Row, figure_of
from precision_eval.results.reading import Run
from precision_eval.results.sound import SOUND_METRICS

VOICE_WINDOW_FRAMES = 512
"""Positions that the voice attends over at most; a test holds this to the model's own figure."""

IDENTITY = ("case", "size", "mode", "device", "pins", "threads", "fix", "role", "status", "reason")
"""First columns of ``results.csv``."""

PARTS = {
    "input_cast_mse": "input cast, %",
    "compute_mse": "compute, %",
    "output_rounding_mse": "output rounding, %",
    "cross_mse": "cross-term, %",
}
"""Key of a part in the records, and its heading."""

_PARTS_NOTES = {
    "cross-term, %": "Parts: shares of the drift's mean square error; where they cancel or add up, the cross-term.",
    "nucleus moved": "Sampler: run alone on float64's logits in the fix's dtype, so no error of attention is in it.",
}

_COMPILED = ("compiled-inductor", "compiled-aot_eager")


def tables_of(run: Run, section: Group) -> tuple[Table, ...]:
    """Return every table of `section` that has something to say."""
    found = (
        *(cost_table(section), streams_table(run, section), audio_table(run, section)),
        *(trace_table(section), parts_table(section)),
    )
    return tuple(table for table in found if table is not None)


def cost_table(section: Group, *, page: bool = False) -> Table | None:
    """Return status, latency, memory, drift and divergence, one row per fix and reference; the page's has more."""
    rows = [row for row in section.rows if row.role == "fix" or row.drift_data or row.data("divergence", "latency")]
    if not rows:
        return None
    has_interval = any(figure_of(row.drift_data, "relative_error_low") is not None for row in rows)
    headings = {"latency ratio": f"latency ratio {confidence_text(section)}"}
    headings |= {"drift": "drift [95 %]"} if has_interval else {}
    notes = [*_cost_notes(section), *([note] if (note := sharpness_note(section)) else ())]
    title = section.title
    facts = (*COSTS, *map(_plugin_fact, plugin_figures(section)))
    return fact_table(section, rows, facts, title=title, notes=notes, page=page, headings={} if page else headings)


def plugin_figures(section: Group) -> tuple[tuple[str, ...], ...]:
    """Return the paths, the measure first, of the figures of measures that installed packages gave."""
    found = {
        (measure, *name.split(".")): None
        for row in section.rows
        for measure, record in row.records.items()
        if measure not in SHAPES
        for name, value in scalars_of(record.data or {})
        if isinstance(value, int | float)
    }
    return tuple(found)


def _plugin_fact(path: tuple[str, ...]) -> Fact:
    title = ".".join(path)
    return Fact(
        text=title,
        page=title,
        read=lambda row, section: figure(record_of(row, path[0]), *path[1:], write=lambda value: f"{value:.4g}"),
    )


def streams_table(run: Run, section: Group) -> Table | None:
    """Return what each metric and judge heard of each fix and control; None where no streams were judged."""
    controls = [row for row in run.comparators(section, "sound") if row.role == "control"]
    fixes, beside = (
        {row.fix: row.sound for row in rows if row.sound is not None and row.sound.metrics}
        for rows in (section.fixes, controls)
    )
    if not fixes:
        return None
    first = next(iter(fixes.values()))
    metrics = [metric for metric in SOUND_METRICS if metric.name in first.metrics]
    lines = [
        (fix, sound.verdict, *(metric.range_text(sound.metrics[metric.name]) for metric in metrics))
        for fix, sound in (fixes | beside).items()
    ]
    margins = (m.text(first.metrics[m.name].margin) for m in metrics)
    least = (m.text(max(sound.detectable[m.name] for sound in fixes.values())) for m in metrics)
    lines += [("margin", MISSING, *margins), ("detectable", MISSING, *least)]
    title = f"Sound of {first.streams} streams of {first.stream_s:g} s · {section.title}"
    table = make_table(("condition", "verdict", *(metric.title for metric in metrics)), lines, title=title)
    note = "margin: within it a fix is no worse; detectable: what would have been found in 80 % of runs, of every fix."
    return replace(table, notes=(note,))


def audio_table(run: Run, section: Group, *, page: bool = False) -> Table | None:
    """Return the sound of each fix beside reference, noise floor and controls; None where no audio was measured."""
    fixes = [row for row in section.fixes if row.data("audio")]
    if not fixes:
        return None
    comparators = run.comparators(section, "audio")
    rows = [
        *(row for row in comparators if row.role == "reference"),
        *fixes,
        *(row for row in comparators if row.role != "reference"),
    ]
    duration_s = figure_of(fixes[0].data("audio"), "duration_s")
    length = "" if duration_s is None else f", {duration_long(duration_s)} each"
    notes = [
        "× n = ratio to the noise floor (the reference with another noise seed): the distance that pure chance makes."
    ]
    if any(figure_of(row.data("audio"), "against_reference", "si_sdr_db", "whole_file") is not None for row in rows):
        notes.append("SI-SDR is of the whole file; identical: the very audio of the reference, so it is infinite.")
    if note := _original_note(fixes[0].data("audio")):
        notes.append(note)
    missing = [
        role for role in ("reference", "noise_floor", "control") if role not in {row.role for row in comparators}
    ]
    if missing:
        names = join(missing).replace("_", " ")
        notes.append(f"Not in these records: {names}; without them these distances have no yardstick.")
    return fact_table(section, rows, SOUND, title=f"Sound · {section.title}{length}", notes=notes, page=page)


def trace_table(section: Group) -> Table | None:
    """Return the dtypes and the attention backend that really ran; None where no trace passed."""
    rows = section.having("trace")
    return fact_table(section, rows, TRACED, title=f"What really ran · {section.title}") if rows else None


def confidence_text(section: Group) -> str:
    """Return the confidence of the latency intervals, such as ``[95 %]``."""
    for row in section.rows:
        confidence = figure_of(row.data("latency"), "confidence")
        if confidence is not None:
            return f"[{confidence * 100:.3g} %]"
    return ""


def failing_lines(section: Group) -> list[str]:
    """Return one line per distinct message of what does not run."""
    return [f"{join(fixes)}: {status}: {reason}" for (status, reason), fixes in section.failing_by_reason.items()]


def _cost_notes(section: Group) -> tuple[str, ...]:
    notes = failing_lines(section)
    gaps = grouped(
        ((measure, status, short_reason(reason)), row.fix)
        for row in section.rows
        for measure, (status, reason) in row.incomplete.items()
    )
    notes += [
        f"* no {measure} of {join(fixes)}: {status}: {reason}" for (measure, status, reason), fixes in gaps.items()
    ]
    baselines = {str(data["baseline"]) for row in section.rows if (data := row.data("latency")) and "baseline" in data}
    if baselines:
        name = join(sorted(baselines))
        notes.append(f"Latency ratio: time over {name}'s, paired; below 1 is faster. A/A: {name} against itself.")
    notes += doubts_of(section)
    return tuple(notes)


def sharpness_note(section: Group) -> str:
    """Return how sharp the voice's attention is, of full_float32 or else of the least drift recorded."""
    known = [row for row in section.rows if figure_of(row.drift_data, "attention_entropy_nats") is not None]
    rows = [row for row in known if row.role == "fix"] or known
    if not rows:
        return ""
    best = min(rows, key=lambda row: (row.fix != "full_float32", figure_of(row.drift_data, "relative_error") or 0.0))
    entropy, logit = (figure_of(best.drift_data, name) or 0.0 for name in ("attention_entropy_nats", "max_abs_logit"))
    steps = figure_of(best.drift_data, "steps")
    context = VOICE_WINDOW_FRAMES if steps is None else min(int(steps), VOICE_WINDOW_FRAMES)
    return (
        f"How sharp attention is ({best.fix}): largest attention logit {fixed(logit, decimals=1)}, mean entropy "
        f"{fixed(entropy, decimals=2)} nats = about {math.exp(entropy):.3g} positions of up to {context}; near-uniform "
        f"attention ({fixed(math.log(context), decimals=1)} nats) would forgive any precision."
    )


def doubts_of(section: Group) -> list[str]:
    """Return the doubts that latency results carry, one line per distinct doubt, with the fixes that share it."""
    doubts = ((str(d), row.fix) for row in section.rows for d in (row.data("latency") or {}).get("doubts") or ())
    return [f"Doubt about {join(fixes)}: {doubt}" for doubt, fixes in grouped(doubts).items()]


def _original_note(data: Mapping[str, Any] | None) -> str:
    """Say how the original speech fares with the same recogniser, so that the script's own change is seen as such."""
    value, first, last = (
        figure_of(data, "phoneme_accuracy", name)
        for name in ("original", "original_first_third", "original_last_third")
    )
    if value is None:
        return ""
    covered, length = figure_of(data, "against_original", "duration_s"), figure_of(data, "duration_s")
    span = "" if covered is None else f" ({duration_long(covered)} of it)"
    text = f"Original speech{span} through the same recogniser: {fixed(value, decimals=3)} of phonemes right"
    if first is None or last is None:
        return f"{text}; its thirds were not recorded, so a fall from third to third may be the script's."
    text += f", thirds {fixed(first, decimals=3)} → {fixed(last, decimals=3)}"
    if covered is not None and length is not None and covered < 0.99 * length:
        return f"{text}; the fixes speak on for {duration_long(length)}, so their thirds are of other words."
    return f"{text}: what changes there too is the script, not a decline."


def shares_of(drift: Mapping[str, Any] | None) -> list[float] | None:
    """Return the parts of a drift in per cent of its mean square error, in the order of ``PARTS``; None without."""
    total = figure_of(drift, "split", "total_mse")
    parts = [figure_of(drift, "split", name) for name in PARTS]
    if not total or any(part is None for part in parts):
        return None
    return [100.0 * float(part or 0.0) / total for part in parts]


def _share(name: str) -> Callable[[Row, Group], str]:
    """Return what reads a part of a drift in per cent."""

    def read(row: Row, section: Group) -> str:
        shares = shares_of(row.drift_data)
        return MISSING if shares is None else fixed(shares[list(PARTS).index(name)], decimals=0)

    return read


_PARTS: tuple[Fact, ...] = (
    Fact(text="drift", read=lambda row, section: scientific(figure_of(row.drift_data, "relative_error"))),
    *(Fact(text=heading, read=_share(name)) for name, heading in PARTS.items()),
    Fact(text="sampler in", read=lambda row, section: str((row.data("sampler") or {}).get("dtype", MISSING))),
    Fact(text="nucleus moved", read=lambda row, section: _moved(row.data("sampler"))),
    Fact(
        text="its total variation",
        read=lambda row, section: scientific(figure_of(row.data("sampler"), "total_variation")),
    ),
)


def parts_table(section: Group) -> Table | None:
    """Return the parts of each fix's drift and the sampler's rounding; None where neither was measured."""
    rows = [row for row in section.fixes if shares_of(row.drift_data) is not None or row.data("sampler") is not None]
    if not rows:
        return None
    table = fact_table(section, rows, _PARTS, title=f"What the drift consists of · {section.title}")
    return replace(table, notes=tuple(note for column, note in _PARTS_NOTES.items() if column in table.columns))


def _moved(sampler: Mapping[str, Any] | None) -> str:
    """Positions whose nucleus changed, of how many: ``22 of 64``."""
    positions, changed = figure_of(sampler, "positions"), figure_of(sampler, "changed_nucleus")
    return MISSING if positions is None or changed is None else f"{changed * positions:.0f} of {positions:.0f}"


def results_table(run: Run) -> Table:
    """Return one row per cell with every scalar of its records, for other tools; what was not measured is empty.

    Columns are the cell's identity, its status per measure, then ``measure.path.to.scalar`` with the unit in the name.
    """
    lines = lines_of(run)
    names = dict.fromkeys(name for line in lines for name in line if name not in IDENTITY)
    columns = (*IDENTITY, *sorted(names))
    rows = [["" if line.get(name) is None else str(line[name]) for name in columns] for line in lines]
    return make_table(columns, rows)


def write_csv(run: Run, path: Path) -> Path:
    """Write the table of all cells to `path` (UTF-8, comma, header line) and return it."""
    path.write_text(to_csv(results_table(run)), encoding="utf-8", newline="")
    return path


def lines_of(run: Run) -> list[dict[str, Any]]:
    """Return one row per fix, reference, noise floor and control of a group: identity, then the figures recorded."""
    return [_line(section, row) for section in run.sections for row in section.rows]


def _line(section: Group, row: Row) -> dict[str, Any]:
    line = {name: getattr(section if hasattr(section, name) else row, name) for name in IDENTITY}
    line["pins"] = section.pins.lstrip(",")
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
