"""Puts the HTML report together and writes it.

Conventions: ``report.html`` is the template, ``report.css`` its rules and ``report.js`` its script, all in this folder;
they become one file that loads nothing. It is complete without the script, which adds what hover and focus show, a way
to pick out fixes, and the arrow keys.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from precision_eval.core.errors import PrecisionEvalError
from precision_eval.core.files import written_whole
from precision_eval.core.formatting import grouped, join, one_line, visible
from precision_eval.core.records import RECORDS_NAME, Record
from precision_eval.explain.messages import short_reason
from precision_eval.fixes.catalog import FIXES
from precision_eval.report.drawing import STATUS_STYLES, file_stem
from precision_eval.report.facts import Figure, pointer
from precision_eval.report.findings import allocator_sentence, narrow_cache_sentence, sound_sentences
from precision_eval.report.html.answer import (
    GroupView,
    answer_rows,
    cards_of,
    in_short,
    path_in_commands,
    places_of,
    uncured,
)
from precision_eval.report.html.charts import (
    Chart,
    change_charts,
    drift_charts,
    memory_charts,
    sound_charts,
    survival_charts,
    tradeoff_charts,
)
from precision_eval.report.html.paper import palette_of, rules_of, template_environment, variables_in
from precision_eval.report.html.sound import sound_section
from precision_eval.report.tables import audio_table, cost_table
from precision_eval.report.text import environment_line, reading_guide
from precision_eval.results.model import Row
from precision_eval.results.reading import ENVIRONMENT_NAME, Run, load_run

FILE_NAME = "report.html"  # the template's name too
LARGEST_BYTES = 15_000_000
"""What the file may weigh, players included."""

_SPARE_BYTES = 200_000
"""Kept free beside players."""

_MOST_NAMED = 3
_DRAWN = ("tradeoff", "drift", "audio", "survival", "memory")
_FILES = ("report.md", "results.csv", RECORDS_NAME, ENVIRONMENT_NAME)


class ReportTooLargeError(PrecisionEvalError, ValueError):
    """The HTML report would weigh more than it may, without any player."""


def write_html(run_dir: Path) -> Path:
    """Write the HTML report of a run into its folder, whole or not at all."""
    text = render_html(run_dir)
    target = Path(run_dir) / FILE_NAME
    with written_whole(target) as path:
        path.write_text(text, encoding="utf-8")
    return target


def render_html(run_dir: Path) -> str:
    """Return the text of the HTML report; see :func:`write_html`."""
    run = load_run(Path(run_dir))
    content = _content(run)
    template = template_environment(Path(__file__).parent).get_template(FILE_NAME)
    bare = len(template.render(**content, sound=None).encode())
    left = LARGEST_BYTES - bare - _SPARE_BYTES
    if left < 0:
        raise ReportTooLargeError(
            f"the HTML report of {run_dir} would weigh {bare:,} bytes without any sound; at most "
            f"{LARGEST_BYTES:,} are meant to be sent around; report fewer cases: give each its own --out"
        )
    return template.render(**content, sound=sound_section(run, budget_bytes=left))


def _content(run: Run) -> dict[str, Any]:
    """Return everything that the template shows, except the players."""
    places = places_of(run)
    shown = shlex.quote(path_in_commands(run.directory))
    palette = palette_of(row.fix for place in places for row in (*_comparators(place), *place.group.rows))
    answers = answer_rows(places)
    cards = cards_of(answers)
    content: dict[str, Any] = {
        "shown": shown,
        "subject": visible(subject(run)),
        "measured": _span(run),
        "line": environment_line(run.environment),
        "palette": palette,
        "status_styles": STATUS_STYLES,
        "in_short": in_short(cards),
        "cards": cards,
        "answers": answers,
        "uncured": uncured(places),
        "instead": [(place, line) for place in places if (line := narrow_cache_sentence(place.group))],
        "count": _counted,
        "tradeoff": _parts(places, tradeoff_charts, "tradeoff", ("latency", "drift", "memory")),
        "drift": _parts(places, drift_charts, "drift", ("teacher_forced_drift",)),
        "audio": _parts(places, sound_charts, "audio", ("synthesis", "audio")),
        "sound_tables": [
            (place, table) for place in places if (table := audio_table(run, place.group, page=True)) is not None
        ],
        "chance": _chance(places),
        "survival": _parts(places, survival_charts, "survival", ("streams", "divergence")),
        "memory": _parts(places, memory_charts, "memory", ("memory",)),
        "statuses": status_table(places),
        "messages": messages_of(places),
        "groups": [(place, cost_table(place.group, page=True), allocator_sentence(place.group)) for place in places],
        "environment": environment_facts(run),
        "other_environments": _environments(run),
        "guide": reading_guide(run),
        "files": [one for one in _FILES if (run.directory / one).is_file()],
        "damage": [one_line(line) for line in run.damage],
    }
    drawn = [chart.svg for name in _DRAWN for part in content[name] for chart in part["charts"]]
    drawn += [chart.svg for group in content["chance"] for chart in group["charts"]]
    return content | {"chart_colours": rules_of(variables_in("".join(drawn)))}


def _parts(places: Sequence[GroupView], draw: Any, kind: str, measures: tuple[str, ...]) -> list[dict[str, Any]]:
    """Draw one kind of chart for every group that allows it, and say how it is made again."""
    parts = []
    for place in places:
        charts: tuple[Chart, ...] = draw(place)
        if charts:
            named = tuple(place.group.measure_of("drift") if measure == "drift" else measure for measure in measures)
            group = place.group
            cells = f"{group.case}/*/{group.mode}@{group.device}:{group.size}{group.pins}#{'|'.join(named)}"
            again = {"cells": cells, "command": place.again(*named), "files": _saved(place, kind)}
            parts.append({"place": place, "charts": charts, **again})
    return parts


def _saved(place: GroupView, kind: str) -> tuple[str, ...]:
    """Return the figures of a kind that the report has saved for a group, PNG and SVG."""
    section = place.group
    grid = f"{section.case}-{section.where}".replace(":", "").replace(" ", "-")
    stems = (f"{kind}-{grid}", f"{kind}-{section.slug}")
    names = [f"figures/{file_stem(stem)}.{end}" for stem in stems for end in ("png", "svg")]
    return tuple(name for name in names if (place.run.directory / name).is_file())


def _comparators(place: GroupView) -> list[Any]:
    measures = ("audio", "divergence", "teacher_forced_drift")
    return [row for name in measures for row in place.run.comparators(place.group, name)]


def _chance(places: Sequence[GroupView]) -> list[dict[str, Any]]:
    """Return, per group with sound, its verdicts, and the changes from the reference that they are of."""
    groups = []
    for place in places:
        sentences = sound_sentences(place.run, place.group)
        if sentences:
            hear = place.group.command("synthesis,audio")
            groups.append({"place": place, "charts": change_charts(place), "sentences": sentences, "hear": hear})
    return groups


def _counted(policy: str, fix: str, kind: str, number: int) -> Markup:
    """Return a count over the answers as an element that says what it counts."""
    figure = Figure(value=float(number), text=str(number), records=("answer",), paths=(pointer(policy, fix, kind),))
    return figure.__html__()


def subject(run: Run) -> str:
    """Name a run's cases, and the GPU or processor it was measured on."""
    cases = list(dict.fromkeys(record.case for record in run.records))
    named = join(cases) if len(cases) <= _MOST_NAMED else f"{len(cases)} cases"
    models = [run.environment.get(part, {}).get("model") for part in ("device", "cpu")]
    return " on ".join(filter(None, [named, models[0] or models[1]]))


def _span(run: Run) -> str:
    """Return the day, or first and last day, of measuring."""
    days = sorted({record.started_at[:10] for record in run.records})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def _environments(run: Run) -> Mapping[str, int]:
    """Count records per environment, by the beginning of its hash; empty where there is one."""
    counts: dict[str, int] = {}
    for record in run.records:
        counts[record.environment[:12]] = counts.get(record.environment[:12], 0) + 1
    return counts if len(counts) > 1 else {}


def status_table(places: Sequence[GroupView]) -> dict[str, Any]:
    """Return the fixes, and the status of each of them in every group."""
    tried = {row.fix for place in places for row in place.group.fixes}
    known = [fix.id for fix in FIXES if fix.id in tried]
    fixes = (*known, *sorted(tried - set(known)))
    return {"fixes": fixes, "rows": [(place, [_look(place, fix) for fix in fixes]) for place in places]}


def _look(place: GroupView, fix: str) -> tuple[str, str]:
    row = next((row for row in place.group.fixes if row.fix == fix), None)
    if row is None:
        return "", ""
    return row.status, STATUS_STYLES[row.status].title + (" *" if row.incomplete else "")


def messages_of(places: Sequence[GroupView]) -> list[dict[str, Any]]:
    """Gather the messages of everything that did not pass and the cells that ended in each, most frequent first."""
    by_message = grouped(
        ((record.status, short_reason(record.reason)), (place, row, record))
        for place in places
        for row in place.group.rows
        for record in _explaining(row)
    )
    messages = []
    for (status, short), ends in sorted(by_message.items(), key=lambda item: -len(item[1])):
        record = ends[0][2]
        where = grouped((place.group.title, row.fix) for place, row, _ in ends)
        lines = [f"{title}: {', '.join(dict.fromkeys(fixes))}" for title, fixes in where.items()]
        words = {"status": status.replace("_", " "), "short": short, "whole": record.reason or ""}
        messages.append({**words, "record": record.cell, "where": lines})
    return messages


def _explaining(row: Row) -> list[Record]:
    """Return the records that say why: the one behind the row's status, and those that differ from it."""
    if row.status == "passed":
        return [record for record in row.records.values() if record.status != "passed"]
    first = next((one for one in row.records.values() if one.status == row.status and one.reason == row.reason), None)
    rest = [one for one in row.records.values() if one.status not in (row.status, "passed")]
    return [*([] if first is None else [first]), *rest]


def environment_facts(run: Run) -> list[tuple[str, str, Figure | str]]:
    """Return (name, JSON pointer, value) of what the run was measured with; long lists and hashes are left out."""
    return list(_facts(run.environment, ()))


def _facts(node: Mapping[str, Any], path: tuple[str, ...]) -> list[tuple[str, str, Figure | str]]:
    facts: list[tuple[str, str, Figure | str]] = []
    for name, value in node.items():
        here = (*path, name)
        if name in ("assets", "config") or value is None:
            continue
        if isinstance(value, Mapping):
            facts += _facts(value, here)
        elif isinstance(value, bool) or not isinstance(value, int | float):
            facts.append((".".join(here), pointer(*here), str(value)))
        else:
            number = Figure(
                value=float(value), text=f"{value:,}", records=("environment.json",), paths=(pointer(*here),)
            )
            facts.append((".".join(here), pointer(*here), number))
    return facts
