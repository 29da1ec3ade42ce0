"""The HTML report over torch versions: one file that needs nothing else, the answer first; and its short form for the
HTML report of a run.

Conventions: figures are in the file as data, and beside it as PNG and SVG for other uses; numbers in tables carry their
value in ``data-v``, so that a program can read them too. Colours follow the reader's light or dark setting; nothing on
the page is said by colour alone. The template is ``html_report.html`` beside this module.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from precision_eval.core.drawing import STATUS_STYLES, save
from precision_eval.core.files import written_whole
from precision_eval.core.formatting import factor_text, scientific, status_text
from precision_eval.core.templating import template_environment
from precision_eval.results.asv import build_words, read_results
from precision_eval.studies.versions.changes import ChangePoint
from precision_eval.studies.versions.history import CaseHistory, FixTable, VersionHistory, history_of
from precision_eval.studies.versions.plots import drawings
from precision_eval.studies.versions.text import (
    METRIC_TITLES,
    Change,
    all_changes,
    changes_of,
    headline,
    positions_of,
    value_text,
)

FILE_NAME = "versions.html"
FIGURES_NAME = "figures"
TEMPLATE_NAME = "html_report.html"
FOLDER = "versions"
"""Beside the records of a run, where its HTML report links to."""
MOST_LINES = 4
"""Changes of a version that are listed before the rest is folded."""
COMMAND = "precision-eval versions --results RESULTS --html FOLDER"
_COLOURS = 128
"""Of a figure on the page: flat colours and the edges of letters need no more."""


@dataclass(frozen=True, kw_only=True)
class VersionPicture:
    """A figure on the page."""

    stem: str
    case: str
    data: str
    alt: str
    source: str
    width: int
    height: int


@dataclass(frozen=True, kw_only=True)
class CellText:
    """One cell of a table."""

    text: str
    note: str = ""
    value: str = ""
    status: str = ""
    changed: bool = False


_QUANTITIES = {
    "latency_ratio": "latency ÷ full_float32 [95 %]",
    "drift": "drift: relative error to float64",
    "peak_bytes": "peak memory of a call",
    "stored_bytes": "weights and caches",
}


def write_html(history: VersionHistory, folder: Path, *, command: str = COMMAND) -> Path:
    """Draw the figures and write the page."""
    pictures = []
    for stem, case, figure in drawings(history):
        png = save(figure, folder / FIGURES_NAME, stem)[0]
        pictures.append(_picture(png, stem, case, axis=axis_name(history)))
    page = folder / FILE_NAME
    with written_whole(page) as path:
        path.write_text(render_html(history, pictures, command=command), encoding="utf-8")
    return page


def render_html(history: VersionHistory, pictures: Sequence[VersionPicture], *, command: str = COMMAND) -> str:
    """Return the page's text."""
    return (
        template_environment(Path(__file__).parent)
        .get_template(TEMPLATE_NAME)
        .render(
            history=history,
            axis=axis_name(history),
            headline=headline(history),
            positions=positions_of(history),
            dates=dates_of(history),
            build=build_words(history.sets),
            hardware=_hardware(history.hardware),
            pythons=", ".join(sorted({result.python for result in history.sets})),
            statuses=[picture for picture in pictures if not picture.case],
            cases=[_case(history, case, pictures) for case in history.cases],
            every_change=[_row(change) for change in all_changes(history)],
            sources=[
                (name, result.torch_version, result.commit[:8], result.environment, result.source.name)
                for name, result in zip(history.positions, history.sets, strict=True)
            ],
            status_styles=STATUS_STYLES,
            command=command,
        )
    )


def axis_name(history: VersionHistory) -> str:
    """Name what the positions are."""
    return "torch version" if history.axis == "torch" else "commit"


def _hardware(known: Mapping[str, str]) -> str:
    """Return processor, cores and system, as far as they are known."""
    cores = f"{known['num_cpu']} cores" if "num_cpu" in known else ""
    return ", ".join(part for part in (known.get("cpu", ""), cores, known.get("arch", ""), known.get("os", "")) if part)


def dates_of(history: VersionHistory) -> Mapping[str, str]:
    """Return the day of each release that is known."""
    known = ((name, history.releases.get(name)) for name in history.positions)
    return {name: release.date.isoformat() for name, release in known if release is not None and release.date}


def _picture(png: Path, stem: str, case: str, *, axis: str) -> VersionPicture:
    """Return a figure's PNG with few colours, as data."""
    from PIL import Image

    with Image.open(png) as image:
        width, height = image.size
        small = image.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
        buffer = io.BytesIO()
        small.save(buffer, format="PNG", optimize=True)
    kind = stem.partition("-")[0]
    subject, metric = {
        "statuses": ("Grid of the status of every fix", "track_status"),
        "drift": (f"Heatmap of the drift of every fix of {case}", "track_drift"),
        "latency": (f"Lines of the latency ratio of every fix of {case}, with intervals,", "track_latency_ratio"),
    }[kind]
    owner = case.replace("-", "_") or "*"
    return VersionPicture(
        stem=stem,
        case=case,
        data="data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii"),
        alt=f"{subject} over {axis}s. The tables below hold the same figures.",
        source=f"*.{owner}.{metric}",
        width=width,
        height=height,
    )


def _case(history: VersionHistory, case: CaseHistory, pictures: Sequence[VersionPicture]) -> dict[str, object]:
    """Return what the template shows of a case: figures, then tables that have a figure in them."""
    tables = []
    for table in case.tables:
        for metric, title in _QUANTITIES.items():
            rows = [(fix, [_cell(case, table, fix, at, metric) for at in history.positions]) for fix in table.fixes]
            if any(cell.value for _, cells in rows for cell in cells):
                tables.append({"mode": table.mode, "size": table.size, "metric": metric, "title": title, "rows": rows})
    return {
        "name": case.case,
        "pictures": [picture for picture in pictures if picture.case == case.case],
        "tables": tables,
        "count": len(case.changes) + len(case.status_changes),
    }


def _cell(case: CaseHistory, table: FixTable, fix: str, position: str, metric: str) -> CellText:
    """Return one cell of a table."""
    cell = table.cells[fix, position]
    metrics = {
        change.key[2]
        for change in changes_of(case)
        if change.at == position and (change.key[0], *change.key[3:]) == (table.mode, fix, table.size)
    }
    changed = bool(metrics & {metric, "status"})
    value = cell.values.get(metric)
    if value is None or not math.isfinite(value):
        return _without_figure(cell.status, changed=changed)
    interval = cell.ratio_interval if metric == "latency_ratio" else None
    note = "" if interval is None else f"{scientific(interval[0], digits=3)}–{scientific(interval[1], digits=3)}"
    return CellText(text=value_text(value, metric), note=note, value=f"{value:.9g}", changed=changed)


def _without_figure(status: str | None, *, changed: bool) -> CellText:
    if status is None:
        return CellText(text="", note="not run")
    if status == "passed":
        return CellText(text="?", note="passed, not measured", changed=changed)
    style = STATUS_STYLES[status]
    return CellText(text=style.letter, note=style.title, status=status, changed=changed)


def _row(change: Change) -> dict[str, str]:
    """Return one line of the table of all changes."""
    mode, case, metric, fix, size = change.key
    row = {"at": change.at, "before": change.before, "case": case, "fix": fix, "mode": mode, "size": size}
    row |= {
        "metric": METRIC_TITLES.get(metric, metric),
        "upstream": ", ".join(cause.id for cause in change.explained_by),
    }
    if not isinstance(change, ChangePoint):
        return row | {"old": status_text(change.old), "new": status_text(change.new), "factor": "", "p": ""}
    exact = f"{change.seeds} seeds" if change.seeds > 1 else "exact"
    p_value = exact if change.p_value is None else scientific(change.p_value)
    return row | {
        "old": value_text(change.old, metric),
        "new": value_text(change.new, metric),
        "factor": factor_text(change.factor, *(change.factor_interval or ())),
        "p": p_value,
    }


@dataclass(frozen=True, kw_only=True)
class Turning:
    """A fix whose status is not the same at every version: (status, its title) per position."""

    where: str
    fix: str
    statuses: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class VersionsSummary:
    """What the HTML report of a run shows of torch versions."""

    machine: str
    headline: str
    positions: tuple[str, ...]
    turning: tuple[Turning, ...]
    changes: Markup
    link: str
    command: str


def versions_summary(results: Path, *, run_dir: Path, name: str) -> VersionsSummary:
    """Sum up a folder of results over versions for the run in `run_dir`, which commands call `name`."""
    history = history_of(read_results(results))
    named = results.name if results.is_absolute() else results.as_posix()
    macros: Any = template_environment(Path(__file__).parent).get_template("changes.html").make_module()
    return VersionsSummary(
        machine=history.machine,
        headline=headline(history),
        positions=tuple(history.positions),
        turning=tuple(row for case in history.cases for row in _turning(history, case)),
        changes=macros.changes(positions_of(history), axis_name(history), dates_of(history), MOST_LINES),
        link=f"{FOLDER}/{FILE_NAME}" if (run_dir / FOLDER / FILE_NAME).is_file() else "",
        command=f"precision-eval versions --results {named} --html {name}/{FOLDER}",
    )


def _turning(history: VersionHistory, case: CaseHistory) -> Iterator[Turning]:
    titles = {status: style.title for status, style in STATUS_STYLES.items()}
    for table in case.tables:
        for fix in table.fixes:
            statuses = [table.cells[fix, name].status or "" for name in history.positions]
            if len(set(statuses) - {""}) > 1:
                titled = tuple((status, titles.get(status, "")) for status in statuses)
                yield Turning(where=f"{case.case}, {table.mode}", fix=fix, statuses=titled)
