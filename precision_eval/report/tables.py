"""The tables of a report: terminal, Markdown and the README share them.

Each section gives a table of costs (status, latency, memory, drift, divergence), a table of what really ran, the parts
of the drift, and, where audio was measured, a table of sound with the reference, the noise floor and both controls
beside the fixes. A column that no row can fill is left out. Parts of a drift are shares of the total mean square error
in per cent; with the cross-term, which may be negative, they add up to 100.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from precision_eval.core.formatting import (
    METRIC_TITLES,
    MISSING,
    duration_long,
    duration_text,
    fixed,
    join,
    memory_text,
    percent,
    scientific,
    with_interval,
)
from precision_eval.core.shapes import DATA as SHAPES
from precision_eval.core.table import Code, Table, make_table, to_csv
from precision_eval.results.messages import short_reason
from precision_eval.results.model import Group, Row, figure_of, is_identical, memory_bytes
from precision_eval.results.reading import Run

WHOLE_FILE_METRICS = ("si_sdr_db",)
"""Shown for the whole file: identical windows make their mean infinite."""

VOICE_WINDOW_FRAMES = 512
"""Positions that the voice attends over at most; a test holds this to the model's own figure."""

IDENTITY = ("case", "size", "mode", "device", "pins", "threads", "fix", "role", "status", "reason")
"""First columns of ``results.csv``."""

_SHORT_DTYPES = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}


PARTS = {
    "input_cast_mse": "input cast, %",
    "compute_mse": "compute, %",
    "output_rounding_mse": "output rounding, %",
    "cross_mse": "cross-term, %",
}
"""Key of a part in the records, and its heading."""

FEWEST_POSITIONS = 20
"""Fewer positions make no share."""

_PARTS_NOTES = {
    "cross-term, %": "Parts: shares of the drift's mean square error; where they cancel or add up, the cross-term.",
    "nucleus moved": "Sampler: run alone on float64's logits in the fix's dtype, so no error of attention is in it.",
}


def tables_of(run: Run, section: Group) -> tuple[Table, ...]:
    """Return every table of `section` that has something to say."""
    found = (cost_table(section), audio_table(run, section), trace_table(section), parts_table(section))
    return tuple(table for table in found if table is not None)


def cost_table(section: Group) -> Table | None:
    """Return status, latency, memory, drift and divergence, one row per fix and reference."""
    rows = [row for row in section.rows if row.role == "fix" or row.drift_data or row.data("divergence", "latency")]
    if not rows:
        return None
    columns: tuple[tuple[str, Callable[[Row], str]], ...] = (
        ("status", lambda row: row.status + ("" if not row.incomplete else " *")),
        (f"latency ratio {confidence_text(section)}", _latency_text),
        ("verdict", lambda row: section.verdict_of(row) or MISSING),
        ("MDE", lambda row: percent(figure_of(row.data("latency"), "minimum_detectable_effect"))),
        ("median", lambda row: duration_text(figure_of(row.data("latency"), "median_s"))),
        ("storage + peak extra", _memory_text),
        ("drift [95 %]" if _has_drift_interval(rows) else "drift", _drift_text),
        ("KL, nats", lambda row: scientific(figure_of(row.drift_data, "kl_nats"))),
        ("diverged", _diverged_text),
        *((".".join(path), partial(_plugin_text, path=path)) for path in plugin_figures(section)),
    )
    notes = [*_cost_notes(section), *([note] if (note := sharpness_note(section)) else ())]
    return _table(section.title, rows, columns, notes=tuple(notes))


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


def _plugin_text(row: Row, *, path: tuple[str, ...]) -> str:
    value = figure_of(row.data(path[0]), *path[1:])
    return MISSING if value is None else f"{value:.4g}"


def audio_table(run: Run, section: Group) -> Table | None:
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
    columns: list[tuple[str, Callable[[Row], str]]] = [
        (f"{METRIC_TITLES[key][0]} to reference, dB", _audio_cell("against_reference", key)) for key in METRIC_TITLES
    ]
    columns += [
        ("MCD to original, dB", _audio_cell("against_original", "mel_mcd_db")),
        ("its slope, dB/min", _slope_cell("against_original", "mel_mcd_db")),
        ("phonemes right (thirds 1 → 3)", _phoneme_text),
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
    return _table(f"Sound · {section.title}{length}", rows, columns, notes=tuple(notes))


def trace_table(section: Group) -> Table | None:
    """Return the dtypes and the attention backend that really ran; None where no trace passed."""
    rows = section.having("trace")
    if not rows:
        return None
    columns: tuple[tuple[str, Callable[[Row], str]], ...] = (
        ("attention: query / key / value → output", lambda row: _operands_text(row.data("trace") or {})),
        ("backend", lambda row: str((row.data("trace") or {}).get("backend", MISSING))),
        ("linear: input · weight", lambda row: _linear_text(row.data("trace") or {})),
        ("casts per call", lambda row: _casts_text(row.data("trace") or {})),
    )
    return _table(f"What really ran · {section.title}", rows, columns)


def confidence_text(section: Group) -> str:
    """Return the confidence of the latency intervals, such as ``[95 %]``."""
    for row in section.rows:
        confidence = figure_of(row.data("latency"), "confidence")
        if confidence is not None:
            return f"[{confidence * 100:.3g} %]"
    return ""


def _table(
    title: str, rows: Sequence[Row], columns: Sequence[tuple[str, Callable[[Row], str]]], notes: tuple[str, ...] = ()
) -> Table:
    filled = [(name, [text(row) for row in rows]) for name, text in columns]
    kept = [(name, cells) for name, cells in filled if any(cell != MISSING for cell in cells)]
    cells_by_row = zip(*(cells for _, cells in kept), strict=True) if kept else iter([()] * len(rows))
    return Table(
        title=title,
        columns=("fix", *(name for name, _ in kept)),
        rows=tuple((Code(row.fix), *cells) for row, cells in zip(rows, cells_by_row, strict=True)),
        kinds=tuple(_kind(row) for row in rows),
        notes=notes,
    )


def _kind(row: Row) -> str:
    if row.role != "fix":
        return "reference"
    return "passed" if row.status == "passed" else "failed"


def _cost_notes(section: Group) -> tuple[str, ...]:
    notes = []
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in section.failing:
        reasons.setdefault((row.status, short_reason(row.reason)), []).append(row.fix)
    notes += [f"{join(fixes)}: {status}: {reason}" for (status, reason), fixes in reasons.items()]
    gaps: dict[tuple[str, str, str], list[str]] = {}
    for row in section.rows:
        for measure, (status, reason) in row.incomplete.items():
            gaps.setdefault((measure, status, short_reason(reason)), []).append(row.fix)
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
    shared: dict[str, list[str]] = {}
    for row in section.rows:
        for doubt in (row.data("latency") or {}).get("doubts") or ():
            shared.setdefault(str(doubt), []).append(row.fix)
    return [f"Doubt about {join(fixes)}: {d}" for d, fixes in shared.items()]


def _latency_text(row: Row) -> str:
    data = row.data("latency")
    middle, low, high = (figure_of(data, name) for name in ("ratio", "ratio_low", "ratio_high"))
    text = with_interval(fixed(middle, decimals=3), fixed(low, decimals=3), fixed(high, decimals=3))
    return f"A/A {text}" if data is not None and data.get("baseline") == row.fix else text


def _memory_text(row: Row) -> str:
    found = memory_bytes(row)
    return MISSING if found is None else f"{memory_text(found[0])} + {memory_text(found[1])}"


def _has_drift_interval(rows: Sequence[Row]) -> bool:
    return any(figure_of(row.drift_data, "relative_error_low") is not None for row in rows)


def _drift_text(row: Row) -> str:
    names = ("relative_error", "relative_error_low", "relative_error_high")
    return with_interval(*(scientific(figure_of(row.drift_data, name)) for name in names))


def _diverged_text(row: Row) -> str:
    data = row.data("divergence")
    diverged, streams = figure_of(data, "diverged"), figure_of(data, "streams")
    return MISSING if diverged is None or streams is None else f"{diverged:.0f}/{streams:.0f}"


def _audio_cell(against: str, metric: str) -> Callable[[Row], str]:
    """Mean over windows; the whole file's value where the metric is a ratio of energies, or has no mean."""

    def text(row: Row) -> str:
        data = row.data("audio")
        mean, whole, ratio = (
            figure_of(data, against, metric, name) for name in ("mean", "whole_file", "ratio_to_null")
        )
        value = whole if mean is None or (metric in WHOLE_FILE_METRICS and whole is not None) else mean
        if value is None:
            return "identical" if against == "against_reference" and is_identical(row) else MISSING
        times = "" if ratio is None or against != "against_reference" else f" (× {ratio:.2f})"
        return fixed(value, decimals=2) + times

    return text


def _slope_cell(against: str, metric: str) -> Callable[[Row], str]:
    def text(row: Row) -> str:
        data = row.data("audio")
        numbers = (figure_of(data, against, metric, name) for name in ("slope_per_min", "slope_low", "slope_high"))
        return with_interval(*(fixed(number, decimals=2) for number in numbers))

    return text


def _phoneme_text(row: Row) -> str:
    data = row.data("audio")
    value, first, last = (figure_of(data, "phoneme_accuracy", name) for name in ("value", "first_third", "last_third"))
    thirds = "" if first is None or last is None else _thirds_text(first, last)
    return thirds if value is None and thirds else fixed(value, decimals=3) + (f" ({thirds})" if thirds else "")


def _thirds_text(first: float, last: float) -> str:
    return f"{fixed(first, decimals=3)} → {fixed(last, decimals=3)}"


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
    text += f", thirds {_thirds_text(first, last)}"
    if covered is not None and length is not None and covered < 0.99 * length:
        return f"{text}; the fixes speak on for {duration_long(length)}, so their thirds are of other words."
    return f"{text}: what changes there too is the script, not a decline."


def _dtype(name: Any) -> str:
    return _SHORT_DTYPES.get(str(name), str(name))


def _operands_text(trace: Mapping[str, Any]) -> str:
    calls = trace.get("sdpa") or ()
    kinds = {
        f"{_dtype(c.get('query'))} / {_dtype(c.get('key'))} / {_dtype(c.get('value'))} → {_dtype(c.get('output'))}"
        f"{'' if c.get('count') in (None, 1) else ' ×' + str(c['count'])}": None
        for c in calls
    }
    return "; ".join(kinds) or MISSING


def _linear_text(trace: Mapping[str, Any]) -> str:
    kinds: dict[str, None] = {}
    for call in trace.get("linear") or ():
        if isinstance(call, Mapping):
            kinds[f"{_dtype(call.get('input', '?'))} · {_dtype(call.get('weight', '?'))}"] = None
    return "; ".join(kinds) or MISSING


def _casts_text(trace: Mapping[str, Any]) -> str:
    texts = [
        f"{cast.get('operand', cast.get('site', '?'))} {_dtype(cast.get('from'))}→{_dtype(cast.get('to'))}"
        f" ×{cast.get('count', 1)}"
        for cast in trace.get("casts") or ()
    ]
    shown = texts[:4] + ([f"and {len(texts) - 4} more"] if len(texts) > 4 else [])
    return "; ".join(shown) or MISSING


def shares_of(drift: Mapping[str, Any] | None) -> list[float] | None:
    """Return the parts of a drift in per cent of its mean square error, in the order of ``PARTS``; None without."""
    total = figure_of(drift, "split", "total_mse")
    parts = [figure_of(drift, "split", name) for name in PARTS]
    if not total or any(part is None for part in parts):
        return None
    return [100.0 * float(part or 0.0) / total for part in parts]


def shares_text(drift: Mapping[str, Any] | None) -> str:
    """Write the parts in one cell: ``60 / 25 / 10 / 5``."""
    shares = shares_of(drift)
    return MISSING if shares is None else " / ".join(fixed(share, decimals=0) for share in shares)


def sampler_text(row: Row) -> str:
    """Share of positions whose nucleus the sampler's own rounding changes; a single position makes no share."""
    data = row.data("sampler")
    positions, changed = figure_of(data, "positions"), figure_of(data, "changed_nucleus")
    if positions is None or changed is None or positions < FEWEST_POSITIONS:
        return MISSING
    return f"{100.0 * changed:.0f} % of {positions:.0f}"


def parts_table(section: Group) -> Table | None:
    """Return the parts of each fix's drift and the sampler's rounding; None where neither was measured."""
    rows = [row for row in section.fixes if shares_of(row.drift_data) is not None or row.data("sampler") is not None]
    if not rows:
        return None
    headings = ("drift", *PARTS.values(), "sampler in", "nucleus moved", "its total variation")
    cells = [_parts_cells(row) for row in rows]
    kept = [place for place in range(len(headings)) if any(line[place] != MISSING for line in cells)]
    columns = tuple(headings[place] for place in kept)
    return Table(
        title=f"What the drift consists of · {section.title}",
        columns=("fix", *columns),
        rows=tuple((Code(row.fix), *(line[place] for place in kept)) for row, line in zip(rows, cells, strict=True)),
        kinds=("passed",) * len(rows),
        notes=tuple(note for column, note in _PARTS_NOTES.items() if column in columns),
    )


def _parts_cells(row: Row) -> list[str]:
    shares, sampler = shares_of(row.drift_data), row.data("sampler")
    return [
        scientific(figure_of(row.drift_data, "relative_error")),
        *([MISSING] * len(PARTS) if shares is None else [fixed(share, decimals=0) for share in shares]),
        MISSING if sampler is None else str(sampler.get("dtype", MISSING)),
        _moved(sampler),
        scientific(figure_of(sampler, "total_variation")),
    ]


def _moved(sampler: Mapping[str, Any] | None) -> str:
    """Positions whose nucleus changed, of how many: ``22 of 64``."""
    positions, changed = figure_of(sampler, "positions"), figure_of(sampler, "changed_nucleus")
    return MISSING if positions is None or changed is None else f"{changed * positions:.0f} of {positions:.0f}"


def results_table(run: Run) -> Table:
    """Return one row per cell with every scalar of its records, for other tools; what was not measured is empty.

    Columns are the cell's identity, its status per measure, then ``measure.path.to.scalar`` with the unit in the name.
    """
    lines = [_line(section, row) for section in run.sections for row in section.rows]
    names = dict.fromkeys(name for line in lines for name in line if name not in IDENTITY)
    columns = (*IDENTITY, *sorted(names))
    rows = [["" if line.get(name) is None else str(line[name]) for name in columns] for line in lines]
    return make_table(columns, rows)


def write_csv(run: Run, path: Path) -> Path:
    """Write the table of all cells to `path` (UTF-8, comma, header line) and return it."""
    path.write_text(to_csv(results_table(run)), encoding="utf-8", newline="")
    return path


def _line(section: Group, row: Row) -> dict[str, Any]:
    line: dict[str, Any] = {
        "case": section.case,
        "size": section.size,
        "mode": section.mode,
        "device": section.device,
        "pins": section.pins.lstrip(","),
        "threads": section.threads,
        "fix": row.fix,
        "role": row.role,
        "status": row.status,
        "reason": row.reason,
    }
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
