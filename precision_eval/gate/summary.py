"""The outcome as Markdown for a pull request, and as strict JSON.

Conventions: changes are shown in per cent, drift as a factor; intervals are those that the verdicts rest on. Long lists
are folded, and never shortened without saying by how much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from precision_eval.core.files import null_where_not_finite
from precision_eval.core.files import to_json as strict_json
from precision_eval.core.formatting import (
    MISSING,
    counted,
    grouped,
    one_line,
    percent,
    percent_change,
    shortened,
    with_interval,
)
from precision_eval.core.table import Code, html_text, make_table, markdown_text, to_markdown
from precision_eval.gate.judging import FigureChange, GateResult, Key
from precision_eval.stats.families import GATE_ERROR

MOST_ROWS = 40

_UNITS = {"peak_bytes": "bytes", "stored_bytes": "bytes", "peakmem": "bytes", "time": "s", "latency": "s"}


_NOT_APART = "what the machine did between the two measurements"
_NOT_COMPARED = {"absolute-speed": "absolute speed (a slowdown of everything alike, full_float32 included)"}


def markdown(compared: GateResult) -> str:
    """Return the summary."""
    parts = [f"**{markdown_text(verdict_line(compared))}**", _sides(compared)]
    parts += _table("Regressions", compared.of("regression"), folded=False)
    parts += _table("Improvements", compared.of("improvement"))
    parts += _table("No worse", compared.of("no worse"))
    parts += _undecided(compared.of("undecided"))
    parts += (
        ["\n".join(["Doubts:", *(f"- {markdown_text(doubt)}" for doubt in compared.doubts)])] if compared.doubts else []
    )
    parts += _lists(compared)
    parts += _table("Not judged", compared.of("shown"))
    return "\n\n".join([*parts, _how(compared)]) + "\n"


def verdict_line(compared: GateResult) -> str:
    """Say in one line whether the gate passes, what it could not tell and what it did not compare."""
    worse, open_ = compared.of("regression"), compared.of("undecided")
    judged = sum(change.verdict != "shown" for change in compared.changes)
    if worse:
        cells = len({one.place for one in worse})
        start = f"Regression: {counted(len(worse), 'figure')} of {counted(cells, 'cell')} worse beyond the margin"
    else:
        start = f"no regression beyond the margins in {counted(judged, 'figure')}"
        start = f"Could not tell: {start}" if compared.gaps else start[0].upper() + start[1:] + _excluded(compared)
    rest = [f"{len(open_)} undecided"] if open_ else []
    line = "; ".join([start, *rest, *compared.gaps])
    missing = [_NOT_COMPARED.get(kind, kind) for kind in compared.not_compared]
    if not compared.paired:
        missing += [_NOT_APART]
    return f"{line}. Not compared: {', '.join(missing)}" if missing else line


def _excluded(compared: GateResult) -> str:
    """Say how much slower no fix can have become, where both sides were timed together."""
    highs = [change.high for change in compared.changes if change.metric == "latency" and change.high is not None]
    highest = max(highs, default=1.0)
    return f"; no fix is slower by more than {percent(highest - 1.0)}" if compared.paired and highest > 1.0 else ""


def _sides(compared: GateResult) -> str:
    names = dict.fromkeys((*compared.base_remarks, *compared.head_remarks))
    rows = [(n, compared.base_remarks.get(n, MISSING), compared.head_remarks.get(n, MISSING)) for n in names]
    return to_markdown(make_table(("", "base", "head"), [("", Code(compared.base), Code(compared.head)), *rows]))


def _table(title: str, changes: Sequence[FigureChange], *, folded: bool = True) -> list[str]:
    """Return a table of changes under its title, the worst first."""
    if not changes:
        return []
    ordered = sorted(changes, key=lambda change: -_size(change))[:MOST_ROWS]
    table = make_table(("cell", "metric", "base", "head", "change", "margin"), [_row(change) for change in ordered])
    return _section(f"{title} ({len(changes)})", to_markdown(table) + _left(len(changes)), folded=folded)


def _row(change: FigureChange) -> tuple[str, ...]:
    values = (_value(change, change.base), _value(change, change.head), _change(change) + _note(change))
    return (Code(change.place.label), change.metric, *values, _margin(change))


def _note(change: FigureChange) -> str:
    return f" ({shortened(one_line(change.note), limit=160)})" if change.note else ""


def _undecided(changes: Sequence[FigureChange]) -> list[str]:
    if not changes:
        return []
    rows = []
    for change in sorted(changes, key=lambda change: -(change.detectable or math.inf))[:MOST_ROWS]:
        seen = MISSING if change.detectable is None else f"+{percent(change.detectable)}"
        counts = "+".join(map(str, change.processes)) if any(change.processes) else MISSING
        rows.append((Code(change.place.label), change.metric, _change(change) + _note(change), seen, counts))
    table = to_markdown(make_table(("cell", "metric", "change", "would have seen", "processes"), rows))
    title = f"Undecided ({len(changes)}), with the smallest change that would have been seen"
    return _section(title, table + _left(len(changes)))


def _lists(compared: GateResult) -> list[str]:
    """Return what is on one side only, and what was set aside, cell by cell."""
    parts = []
    for title, keys in (
        (f"Only in base ({compared.base})", compared.only_base),
        (f"Only in head ({compared.head})", compared.only_head),
    ):
        by_cell = grouped((place.label, metric) for place, metric in keys)
        lines = [f"- {markdown_text(Code(label))}: {', '.join(metrics)}" for label, metrics in by_cell.items()]
        parts += _listed(f"{title}: {counted(len(keys), 'figure')}", lines)
    by_reason = grouped((why, markdown_text(Code(place.label))) for (place, _), why in compared.set_aside)
    lines = [f"- other {markdown_text(why)}: {', '.join(dict.fromkeys(cells))}" for why, cells in by_reason.items()]
    return parts + _listed(f"Set aside as unlike: {counted(len(compared.set_aside), 'figure')}", lines)


def _listed(title: str, lines: Sequence[str]) -> list[str]:
    return _section(title, "\n".join(lines[:MOST_ROWS]) + _left(len(lines))) if lines else []


def _how(compared: GateResult) -> str:
    margins = compared.margins
    rule = (
        f"at an error of about {percent(GATE_ERROR)} for the whole gate, over all cells together (moderated t, margin "
        "inside the test, Holm)"
    )
    if compared.paired:
        cleared = "" if margins.clear is None else f" (cleared below {percent(margins.clear)})"
        return (
            f"Margins: latency {percent(margins.latency)}{cleared}, drift ×{margins.drift:g}, "
            f"memory {percent(margins.memory)}. "
            "latency_to_anchor is the time over that of a fixed numpy computation timed beside it; it is not judged. "
            f"Both sides ran in the same processes, on the same tensors, in turn. Latency and drift are judged {rule}; "
            "no worse: below the margin, or what clears, with 97.5 % confidence. What the first processes left "
            "undecided was measured in further ones; either look has half of these errors. Intervals are of 97.5 %."
        )
    text = (
        f"Margins: latency {percent(margins.latency)} (to the anchor {percent(margins.anchor)}), "
        f"drift ×{margins.drift:g}, memory {percent(margins.memory)}. "
        f"Latency is compared by paired ratios within processes, {rule}, where both sides' processes are draws of one "
        "distribution, five or more a side. Drift is of one seed."
    )
    spreads = [f"{name} {percent(math.sqrt(prior.variance))}" for name, prior in compared.priors.items()]
    return text + (f" Usual spread between processes: {', '.join(spreads)}." if spreads else "")


def _section(title: str, text: str, *, folded: bool = True) -> list[str]:
    if not folded:
        return [f"### {markdown_text(title)}", text]
    return [f"<details><summary>{html_text(title)}</summary>\n\n{text}\n\n</details>"]


def _size(change: FigureChange) -> float:
    return math.inf if change.ratio is None or change.ratio <= 0.0 else abs(math.log(change.ratio))


def _left(count: int) -> str:
    return f"\n\nand {count - MOST_ROWS} more, see --json" if count > MOST_ROWS else ""


def _value(change: FigureChange, value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return str(value or MISSING)
    unit = _UNITS.get(change.metric)
    if unit == "bytes":
        return f"{value:,.0f} B"
    return f"{value:.4g}{f' {unit}' if unit else ''}"


def _change(change: FigureChange) -> str:
    if change.ratio is None:
        return MISSING
    if change.metric.endswith("drift"):
        return f"×{change.ratio:.3g}"
    if change.low is None or change.high is None:
        return percent_change(change.ratio)
    return with_interval(*map(percent_change, (change.ratio, change.low, change.high)))


def _margin(change: FigureChange) -> str:
    if change.margin is None:
        return MISSING
    return f"×{1.0 + change.margin:g}" if change.metric.endswith("drift") else percent(change.margin)


def to_json(compared: GateResult) -> str:
    """Return everything as strict JSON, indented."""
    content = {
        "verdict": compared.outcome,
        "summary": verdict_line(compared),
        "required": list(compared.required),
        "gaps": list(compared.gaps),
        "not_compared": list(compared.not_compared),
        "paired": compared.paired,
        "base": {"name": compared.base, **compared.base_remarks},
        "head": {"name": compared.head, **compared.head_remarks},
        "margins": asdict(compared.margins),
        "gate_error": GATE_ERROR,
        "changes": [_plain_change(change) for change in compared.changes],
        "only_base": [_plain_key(key) for key in compared.only_base],
        "only_head": [_plain_key(key) for key in compared.only_head],
        "set_aside": [{**_plain_key(key), "differs": why} for key, why in compared.set_aside],
        "priors": {
            name: {"degrees": prior.degrees, "spread": math.sqrt(prior.variance)}
            for name, prior in compared.priors.items()
        },
        "doubts": list(compared.doubts),
    }
    return strict_json(null_where_not_finite(content), what="the verdicts", indent=1) + "\n"


def _plain_change(one: FigureChange) -> dict[str, Any]:
    return _plain_key((one.place, one.metric)) | {name: value for name, value in vars(one).items() if name != "place"}


def _plain_key(key: Key) -> dict[str, Any]:
    return {"cell": key[0].label, **key[0]._asdict(), "metric": key[1]}
