"""The HTML report over torch versions: one file that needs nothing else, the answer first.

Conventions: figures are in the file as data, and beside it as PNG and SVG for other uses; numbers in tables carry their
value in ``data-v``, so that a program can read them too. Colours follow the reader's light or dark setting; nothing on
the page is said by colour alone. The template is ``html_report.html`` beside this module.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from precision_eval.core.drawing import STATUS_STYLES, save
from precision_eval.core.files import written_whole
from precision_eval.core.formatting import scientific
from precision_eval.core.templating import template_environment
from precision_eval.results.asv import build_words, read_results
from precision_eval.studies.versions.changes import ChangePoint
from precision_eval.studies.versions.history import CaseHistory, FixCell, FixTable, VersionHistory, history_of
from precision_eval.studies.versions.plots import drawings
from precision_eval.studies.versions.text import (
    METRIC_TITLES,
    Change,
    all_changes,
    changes_of,
    factor_text,
    headline,
    positions_of,
    status_text,
    value_text,
)

FILE_NAME = "versions.html"
FIGURES_NAME = "figures"
TEMPLATE_NAME = "html_report.html"
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


@dataclass(frozen=True, kw_only=True)
class Shows:
    """What one table shows of each cell: metric, title and reader."""

    metric: str
    title: str
    read: Callable[[FixCell], float | None]


_QUANTITIES = (
    Shows(metric="latency_ratio", title="latency ÷ full_float32 [95 %]", read=lambda cell: cell.ratio),
    Shows(metric="drift", title="drift: relative error to float64", read=lambda cell: cell.drift),
    Shows(metric="peak_bytes", title="peak memory of a call", read=lambda cell: cell.peak_bytes),
    Shows(metric="stored_bytes", title="weights and caches", read=lambda cell: cell.stored_bytes),
)


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
            pythons=", ".join(sorted({one.python for one in history.sets})),
            statuses=[picture for picture in pictures if not picture.case],
            cases=[_case(history, case, pictures) for case in history.cases],
            every_change=[_row(change) for change in all_changes(history)],
            sources=[
                (name, one.torch_version, one.commit[:8], one.environment, one.source.name)
                for name, one in zip(history.positions, history.sets, strict=True)
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
    return {name: one.date.isoformat() for name, one in known if one is not None and one.date is not None}


def _picture(png: Path, stem: str, case: str, *, axis: str) -> VersionPicture:
    """Return a figure's PNG with few colours, as data."""
    from PIL import Image

    with Image.open(png) as image:
        width, height = image.size
        small = image.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
        buffer = io.BytesIO()
        small.save(buffer, format="PNG", optimize=True)
    kind = stem.partition("-")[0]
    shown, metric = {
        "statuses": ("Grid of the status of every fix", "track_status"),
        "drift": (f"Heatmap of the drift of every fix of {case}", "track_drift"),
        "latency": (f"Lines of the latency ratio of every fix of {case}, with intervals,", "track_latency_ratio"),
    }[kind]
    owner = case.replace("-", "_") or "*"
    return VersionPicture(
        stem=stem,
        case=case,
        data="data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii"),
        alt=f"{shown} over {axis}s. The tables below hold the same figures.",
        source=f"*.{owner}.{metric}",
        width=width,
        height=height,
    )


def _case(history: VersionHistory, case: CaseHistory, pictures: Sequence[VersionPicture]) -> dict[str, object]:
    """Return what the template shows of a case: figures, then tables that have a figure in them."""
    tables = []
    for table in case.tables:
        for shows in _QUANTITIES:
            rows = [(fix, [_shown(case, table, fix, name, shows) for name in history.positions]) for fix in table.fixes]
            if any(cell.value for _, cells in rows for cell in cells):
                tables.append({"mode": table.mode, "size": table.size, "shows": shows, "rows": rows})
    return {
        "name": case.case,
        "pictures": [picture for picture in pictures if picture.case == case.case],
        "tables": tables,
        "count": len(case.changes) + len(case.status_changes),
    }


def _shown(case: CaseHistory, table: FixTable, fix: str, position: str, shows: Shows) -> CellText:
    """Return one cell of a table."""
    cell = table.cells[fix, position]
    metrics = {
        one.key[2]
        for one in changes_of(case)
        if one.at == position and (one.key[0], *one.key[3:]) == (table.mode, fix, table.size)
    }
    changed = bool(metrics & {shows.metric, "status"})
    value = shows.read(cell)
    if value is None or not math.isfinite(value):
        return _without_figure(cell.status, changed=changed)
    interval = cell.ratio_interval if shows.metric == "latency_ratio" else None
    note = "" if interval is None else f"{scientific(interval[0], digits=3)}–{scientific(interval[1], digits=3)}"
    return CellText(text=value_text(value, shows.metric), note=note, value=f"{value:.9g}", changed=changed)


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
    row |= {"metric": METRIC_TITLES.get(metric, metric), "upstream": ", ".join(one.id for one in change.explained_by)}
    if not isinstance(change, ChangePoint):
        return row | {"old": status_text(change.old), "new": status_text(change.new), "factor": "", "p": ""}
    exact = f"{change.seeds} seeds" if change.seeds > 1 else "exact"
    p_value = exact if change.p_value is None else scientific(change.p_value)
    return row | {
        "old": value_text(change.old, metric),
        "new": value_text(change.new, metric),
        "factor": factor_text(change.factor, change.factor_interval),
        "p": p_value,
    }


FOLDER = "versions"
MOST_LINES = 4
"""Changes of a version that are listed before the rest is folded."""


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


def versions_summary(results: Path, *, run_dir: Path, shown: str) -> VersionsSummary:
    """Sum up a folder of results over versions for the run in `run_dir`, which commands name as `shown`."""
    history = history_of(read_results(results))
    named = results.name if results.is_absolute() else results.as_posix()
    return VersionsSummary(
        machine=history.machine,
        headline=headline(history),
        positions=tuple(history.positions),
        turning=tuple(row for case in history.cases for row in _turning(history, case)),
        changes=_changes(history),
        link=f"{FOLDER}/{FILE_NAME}" if (run_dir / FOLDER / FILE_NAME).is_file() else "",
        command=f"precision-eval versions --results {named} --html {shown}/{FOLDER}",
    )


def _changes(history: VersionHistory) -> Markup:
    template = template_environment(Path(__file__).parent).get_template("changes.html")
    macros = template.make_module()
    written: Markup = macros.changes(positions_of(history), axis_name(history), dates_of(history), MOST_LINES)  # type: ignore[attr-defined]
    return written


def _turning(history: VersionHistory, case: CaseHistory) -> list[Turning]:
    found = []
    for table in case.tables:
        for fix in table.fixes:
            statuses = [table.cells[fix, name].status or "" for name in history.positions]
            if len(set(statuses) - {""}) > 1:
                titled = tuple(
                    (statuse, STATUS_STYLES[statuse].title if statuse in STATUS_STYLES else "") for statuse in statuses
                )
                found.append(Turning(where=f"{case.case}, {table.mode}", fix=fix, statuses=titled))
    return found
