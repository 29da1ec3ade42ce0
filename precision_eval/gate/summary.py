"""The outcome as Markdown for a pull request or a terminal, and as strict JSON.

Conventions: changes are in per cent, drift as a factor; intervals are those that *no worse* rests on. On a page long
lists are folded; none is shortened without saying by how much.
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
    duration_text,
    one_line,
    percent,
    percent_change,
    shortened,
    with_interval,
)
from precision_eval.core.table import Code, html_text, make_table, markdown_text, to_markdown
from precision_eval.gate.judging import GATE_ERROR
from precision_eval.gate.result import FigureChange, GateResult

MOST_ROWS = 40
_SECTIONS = {
    "regression": "Regressions",
    "improvement": "Improvements",
    "undecided": "Undecided",
    "no worse": "No worse",
    "shown": "Not judged",
}


def to_text(result: GateResult, *, folded: bool) -> str:
    """Return the summary as Markdown; `folded` hides all tables but that of regressions until they are clicked."""
    sides = [("base", Code(result.base)), ("head", Code(result.head)), *result.machine.items()]
    parts = [f"**{markdown_text(verdict_line(result))}**", to_markdown(make_table(("", ""), sides))]
    for verdict, title in _SECTIONS.items():
        changes = sorted(result.of(verdict), key=lambda change: -_size(change))  # type: ignore[arg-type]
        if changes:
            heading = f"{title} ({len(changes)})"
            parts += _section(heading, _rows(changes), folded=folded and verdict != "regression")
    if result.doubts:
        parts.append("\n".join(["Doubts:", *(f"- {markdown_text(doubt)}" for doubt in result.doubts)]))
    return "\n\n".join([*parts, *([_rule(result)] if result.changes else [])]) + "\n"


def verdict_line(result: GateResult) -> str:
    if not result.changes and result.unchanged:
        return f"Unchanged: base and head run the same code in {', '.join(result.unchanged)}"
    worse, fixed = result.of("regression"), result.fixed
    judged = sum(change.verdict not in ("shown", "undecided") for change in result.changes)
    none_worse = f"no regression beyond the margins in {counted(judged, 'figure')}"
    if worse:
        cells = len({change.place for change in worse})
        line = f"Regression: {counted(len(worse), 'figure')} of {counted(cells, 'cell')} worse beyond the margin"
        line += "".join(f"; {change.place.case} is fixed under {change.place.fix}" for change in fixed)
    elif result.gaps:
        line = f"Could not tell: {none_worse}; {'; '.join(result.gaps)}"
    elif fixed:
        names = ", ".join(f"{change.place.case} under {change.place.fix}" for change in fixed)
        line = f"Fixed: {fixed[0].base} at base, passes at head ({names}); {none_worse}"
    else:
        highs = [c.high for c in result.changes if c.metric == "latency" and c.high is not None]
        bound = f"; no fix is slower by more than {percent(max(highs) - 1.0)}" if max(highs, default=0.0) > 1.0 else ""
        line = f"{none_worse[0].upper()}{none_worse[1:]}{bound}"
    if result.unchanged:
        line += f"; unchanged: {', '.join(result.unchanged)}"
    missing = [kind for kind in result.not_compared if kind not in result.required]
    return f"{line}. Not compared: {', '.join(missing)}" if missing else line


def _rows(changes: Sequence[FigureChange]) -> str:
    """Return a table of changes, and by how many it is shortened."""
    names = ("cell", "metric", "base", "head", "change", "margin", "would find", "note")
    table = to_markdown(make_table(names, [_row(change) for change in changes[:MOST_ROWS]]))
    more = len(changes) - MOST_ROWS
    return f"{table}\n\nand {more} more, see --json" if more > 0 else table


def _row(change: FigureChange) -> tuple[str, ...]:
    return (
        Code(change.place.label),
        change.metric,
        _value(change, change.base),
        _value(change, change.head),
        _change(change),
        _as_change(change, change.margin),
        _as_change(change, change.detectable),
        shortened(one_line(change.note), limit=160),
    )


def _section(title: str, text: str, *, folded: bool) -> list[str]:
    if folded:
        return [f"<details><summary>{html_text(title)}</summary>\n\n{text}\n\n</details>"]
    return [f"### {markdown_text(title)}", text]


def _rule(result: GateResult) -> str:
    margins = result.margins
    cleared = "" if margins.clear is None else f" (cleared below {percent(margins.clear)})"
    return (
        f"Margins: latency {percent(margins.latency)}{cleared}, drift ×{margins.drift:g}, "
        f"memory {percent(margins.memory)}. Both sides ran in the same processes, on the same tensors, in turn. "
        f"Latency and drift are judged together, at an error of {percent(GATE_ERROR)} for the whole gate (paired t "
        "over processes, margin inside the test, Holm); no worse: below the margin, or what clears, with 97.5 % "
        "confidence. Undecided cells were measured in further processes; either look has half of these errors."
    )


def _size(change: FigureChange) -> float:
    return math.inf if change.ratio is None or change.ratio <= 0.0 else abs(math.log(change.ratio))


def _value(change: FigureChange, value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return str(value or MISSING)
    if change.metric == "latency":
        return duration_text(value)
    return f"{value:,.0f} B" if change.metric.endswith("bytes") else f"{value:.4g}"


def _change(change: FigureChange) -> str:
    if change.ratio is None:
        return MISSING
    if change.metric == "drift":
        return f"×{change.ratio:.3g}"
    if change.low is None or change.high is None:
        return percent_change(change.ratio)
    return with_interval(*map(percent_change, (change.ratio, change.low, change.high)))


def _as_change(change: FigureChange, value: float | None) -> str:
    if value is None:
        return MISSING
    return f"×{1.0 + value:.3g}" if change.metric == "drift" else percent(value)


def to_json(result: GateResult) -> str:
    """Return everything as strict JSON, indented."""
    content: dict[str, Any] = {
        "verdict": result.outcome,
        "summary": verdict_line(result),
        "required": list(result.required),
        "gaps": list(result.gaps),
        "not_compared": list(result.not_compared),
        "base": result.base,
        "head": result.head,
        "machine": dict(result.machine),
        "margins": asdict(result.margins),
        "gate_error": GATE_ERROR,
        "unchanged": list(result.unchanged),
        "changes": [_plain_change(change) for change in result.changes],
        "doubts": list(result.doubts),
    }
    return strict_json(null_where_not_finite(content), what="the verdicts", indent=1) + "\n"


def _plain_change(change: FigureChange) -> dict[str, Any]:
    place = {"cell": change.place.label, **change.place._asdict()}
    return place | {name: value for name, value in vars(change).items() if name != "place"}
