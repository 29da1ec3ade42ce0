"""The outcome as Markdown for a pull request, and as strict JSON.

Conventions: changes are shown in per cent, drift as a factor; intervals are those that the verdicts rest on. Long lists
are folded, and never shortened without saying by how much.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from precision_eval.results.gate.judging import Change, Comparison, Key
from precision_eval.results.gate.paired import GATE_ERROR

MOST_ROWS = 40

_UNITS = {"peak_bytes": "bytes", "stored_bytes": "bytes", "peakmem": "bytes", "time": "s"}


_NOT_COMPARED = {"absolute-speed": "absolute speed (a slowdown of everything alike, full_float32 included)"}


def markdown(found: Comparison) -> str:
    """Return the summary."""
    parts = [f"**{verdict_line(found)}**", _sides(found)]
    parts += _table("Regressions", found.of("regression"), open_=True)
    parts += _table("Improvements", found.of("improvement"), open_=False)
    parts += _undecided(found.of("undecided"))
    parts += _doubts(found)
    parts += _keys(f"Only in base ({found.base})", found.only_base)
    parts += _keys(f"Only in head ({found.head})", found.only_head)
    parts += _set_aside(found)
    parts += _shown(found)
    parts.append(_how(found))
    return "\n\n".join(parts) + "\n"


def verdict_line(found: Comparison) -> str:
    """Say in one line whether the gate passes, what it could not tell and what it did not compare."""
    worse, open_ = found.of("regression"), found.of("undecided")
    judged = sum(one.verdict != "shown" for one in found.changes)
    if worse:
        cells = len({one.place for one in worse})
        start = f"Regression: {_count(len(worse), 'figure')} of {_count(cells, 'cell')} worse beyond the margin"
    else:
        start = f"no regression beyond the margins in {_count(judged, 'figure')}"
        start = f"Could not tell: {start}" if found.gaps else start[0].upper() + start[1:]
    rest = [f"{len(open_)} undecided"] if open_ else []
    line = "; ".join([start, *rest, *found.gaps])
    missing = ", ".join(_NOT_COMPARED.get(kind, kind) for kind in found.not_compared)
    return f"{line}. Not compared: {missing}" if missing else line


def _sides(found: Comparison) -> str:
    rows = ["| | base | head |", "|---|---|---|", f"| | `{found.base}` | `{found.head}` |"]
    names = [*found.base_remarks, *(name for name in found.head_remarks if name not in found.base_remarks)]
    rows += [f"| {n} | {found.base_remarks.get(n, '–')} | {found.head_remarks.get(n, '–')} |" for n in names]
    return "\n".join(rows)


def _table(title: str, changes: Sequence[Change], *, open_: bool) -> list[str]:
    """Return a table of changes under its title, folded where it is not the first thing to read."""
    if not changes:
        return []
    rows = ["| cell | metric | base | head | change | margin |", "|---|---|---|---|---|---|"]
    rows += [_row(one) for one in _worst_first(changes)[:MOST_ROWS]]
    return _section(f"{title} ({len(changes)})", "\n".join(rows) + _left(len(changes)), open_=open_)


def _row(one: Change) -> str:
    note = f" {_inline(one.note)}" if one.note else ""
    cells = (f"`{one.place.label}`", one.metric, _value(one, one.base), _value(one, one.head), _change(one) + note)
    return f"| {' | '.join((*cells, _margin(one)))} |"


def _undecided(changes: Sequence[Change]) -> list[str]:
    if not changes:
        return []
    rows = ["| cell | metric | change | would have seen | processes |", "|---|---|---|---|---|"]
    ordered = sorted(changes, key=lambda one: -(one.detectable or math.inf))
    for one in ordered[:MOST_ROWS]:
        seen = "–" if one.detectable is None else f"+{100 * one.detectable:.2g} %"
        counts = "+".join(map(str, one.processes)) if any(one.processes) else "–"
        rows.append(f"| `{one.place.label}` | {one.metric} | {_change(one)} | {seen} | {counts} |")
    text = "\n".join(rows) + _left(len(changes))
    return _section(f"Undecided ({len(changes)}), with the smallest change that would have been seen", text)


def _doubts(found: Comparison) -> list[str]:
    return ["Doubts:\n" + "\n".join(f"- {doubt}" for doubt in found.doubts)] if found.doubts else []


def _keys(title: str, keys: Sequence[Key]) -> list[str]:
    if not keys:
        return []
    by_place: dict[str, list[str]] = {}
    for place, metric in keys:
        by_place.setdefault(place.label, []).append(metric)
    lines = [f"- `{label}`: {', '.join(metrics)}" for label, metrics in list(by_place.items())[:MOST_ROWS]]
    return _section(f"{title}: {_count(len(keys), 'figure')}", "\n".join(lines) + _left(len(by_place)))


def _set_aside(found: Comparison) -> list[str]:
    if not found.set_aside:
        return []
    by_reason: dict[str, list[Key]] = {}
    for key, why in found.set_aside:
        by_reason.setdefault(why, []).append(key)
    lines = []
    for why, keys in by_reason.items():
        places = list(dict.fromkeys(f"`{place.label}`" for place, _ in keys))
        lines.append(f"- other {why}: {', '.join(places[:MOST_ROWS])}{_left(len(places), '; ')}")
    return _section(f"Set aside as unlike: {_count(len(found.set_aside), 'figure')}", "\n".join(lines))


def _shown(found: Comparison) -> list[str]:
    shown = found.of("shown")
    return _table("Not judged", shown, open_=False) if shown else []


def _how(found: Comparison) -> str:
    margins = found.margins
    text = (
        f"Margins: latency {_percent(margins.latency)} (to the anchor {_percent(margins.anchor)}), "
        f"drift ×{margins.drift:g}, memory {_percent(margins.memory)}. "
        "Latency is compared by paired ratios within processes, at an error of about "
        f"{_percent(GATE_ERROR)} for the whole gate, over all cells together (moderated t, margin inside the test, "
        "Holm), where both sides' processes are draws of one distribution, five or more a side. Drift is of one seed."
    )
    spreads = [f"{name} {_percent(math.sqrt(prior.variance))}" for name, prior in found.priors.items()]
    return text + (f" Usual spread between processes: {', '.join(spreads)}." if spreads else "")


def _section(title: str, text: str, *, open_: bool = False) -> list[str]:
    if open_:
        return [f"### {title}", text]
    return [f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"]


def _worst_first(changes: Sequence[Change]) -> list[Change]:
    def size(one: Change) -> float:
        return math.inf if one.ratio is None or one.ratio <= 0.0 else abs(math.log(one.ratio))

    return sorted(changes, key=lambda one: -size(one))


def _left(count: int, start: str = "\n\n") -> str:
    return f"{start}and {count - MOST_ROWS} more, see --json" if count > MOST_ROWS else ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.3g} %"


def _value(one: Change, value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return str(value or "–")
    unit = _UNITS.get(one.metric)
    if unit == "bytes":
        return f"{value:,.0f} B"
    return f"{value:.4g}{f' {unit}' if unit else ''}"


def _change(one: Change) -> str:
    if one.ratio is None:
        return "–"
    if one.metric.endswith("drift"):
        return f"×{one.ratio:.3g}"
    text = _signed(one.ratio)
    if one.low is not None and one.high is not None:
        text += f" [{_signed(one.low)}, {_signed(one.high)}]"
    return text


def _signed(ratio: float) -> str:
    return f"{100 * (ratio - 1.0):+.2f} %"


def _margin(one: Change) -> str:
    if one.margin is None:
        return "–"
    return f"×{1.0 + one.margin:g}" if one.metric.endswith("drift") else _percent(one.margin)


def _inline(text: str) -> str:
    """Keep a message on one line of a table, at a readable length."""
    flat = " ".join(text.split()).replace("|", "\\|")
    return f"({flat[:160]}{'…' if len(flat) > 160 else ''})"


def to_json(found: Comparison) -> str:
    """Return everything as strict JSON, indented."""
    content = {
        "verdict": found.outcome,
        "summary": verdict_line(found),
        "required": list(found.required),
        "gaps": list(found.gaps),
        "not_compared": list(found.not_compared),
        "base": {"name": found.base, **found.base_remarks},
        "head": {"name": found.head, **found.head_remarks},
        "margins": asdict(found.margins),
        "gate_error": GATE_ERROR,
        "changes": [_plain_change(one) for one in found.changes],
        "only_base": _plain_keys(found.only_base),
        "only_head": _plain_keys(found.only_head),
        "set_aside": [{**_plain_key(key), "differs": why} for key, why in found.set_aside],
        "priors": {
            name: {"degrees": _finite(prior.degrees), "spread": math.sqrt(prior.variance)}
            for name, prior in found.priors.items()
        },
        "doubts": list(found.doubts),
    }
    return json.dumps(content, allow_nan=False, ensure_ascii=False, indent=1) + "\n"


def _plain_change(one: Change) -> dict[str, Any]:
    values = {name: _finite(value) for name, value in vars(one).items() if name not in ("place", "metric")}
    return _plain_key((one.place, one.metric)) | values


def _plain_key(key: Key) -> dict[str, Any]:
    return {"cell": key[0].label, **key[0]._asdict(), "metric": key[1]}


def _plain_keys(keys: Iterable[Key]) -> list[dict[str, Any]]:
    return [_plain_key(key) for key in keys]


def _finite(value: Any) -> Any:
    """Infinity is no JSON: None stands for what has no bound."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
