"""The HTML report over torch versions: one file that needs nothing else, the answer first; and its short form for the
HTML report of a run.

Conventions: tables are those of the terminal; figures are in the file as data, and beside it as PNG and SVG for other
uses. Nothing on the page is said by colour alone. The template is ``html_report.html`` beside this module.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from precision_eval.core.files import written_whole
from precision_eval.core.formatting import command_line
from precision_eval.core.table import make_table, to_html
from precision_eval.history.plots import drawings
from precision_eval.history.text import headline, positions_of, tables
from precision_eval.history.versions import CaseHistory, VersionHistory, history_of
from precision_eval.report.drawing import STATUS_STYLES, save
from precision_eval.report.html.paper import template_environment
from precision_eval.results.asv import build_words, read_results

FILE_NAME = "versions.html"
FIGURES_NAME = "figures"
TEMPLATE_NAME = "html_report.html"
FOLDER = "versions"
"""Beside the records of a run, where its HTML report links to."""
MOST_LINES = 4
"""Changes of a version that are listed before the rest is folded."""
COMMAND = "precision-eval versions --results RESULTS --html FOLDER"


def write_html(history: VersionHistory, folder: Path) -> Path:
    """Draw the figures and write the page, which holds them."""
    pictures: dict[str, list[tuple[str, str, str]]] = {}
    for stem, case, figure in drawings(history):
        svg = save(figure, folder / FIGURES_NAME, stem)[1]
        data = f"data:image/svg+xml;base64,{base64.b64encode(svg.read_bytes()).decode('ascii')}"
        pictures.setdefault(case, []).append((stem, figure.get_suptitle(), data))
    page = folder / FILE_NAME
    text = (
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
            pictures=pictures,
            cases={case.case: [Markup(to_html(table)) for table in tables(history, case)] for case in history.cases},  # noqa: S704 - escaped cell by cell
            sources=Markup(to_html(_sources(history))),  # noqa: S704 - likewise
            status_styles=STATUS_STYLES,
            command=COMMAND,
        )
    )
    with written_whole(page) as path:
        path.write_text(text, encoding="utf-8")
    return page


def axis_name(history: VersionHistory) -> str:
    """Name what the positions are."""
    return "torch version" if history.axis == "torch" else "commit"


def dates_of(history: VersionHistory) -> Mapping[str, str]:
    """Return the day of each release that is known."""
    return {name: day.isoformat() for name in history.positions if (day := history.releases.get(name))}


def _hardware(known: Mapping[str, str]) -> str:
    """Return processor, cores and system, as far as they are known."""
    cores = f"{known['num_cpu']} cores" if "num_cpu" in known else ""
    return ", ".join(part for part in (known.get("cpu", ""), cores, known.get("arch", ""), known.get("os", "")) if part)


def _sources(history: VersionHistory) -> Any:
    rows = [
        (name, result.torch_version, result.commit[:8], result.environment, result.source.name)
        for name, result in zip(history.positions, history.sets, strict=True)
    ]
    return make_table((axis_name(history), "torch", "commit", "environment", "file"), rows)


def versions_summary(results: Path, *, run_dir: Path, name: str) -> dict[str, Any]:
    """Sum a folder of results over versions up, for the HTML report of a run that commands call `name`."""
    history = history_of(read_results(results))
    named = results.name if results.is_absolute() else results.as_posix()
    macros: Any = template_environment(Path(__file__).parent).get_template("changes.html").make_module()
    return {
        "machine": history.machine,
        "headline": headline(history),
        "positions": history.positions,
        "turning": [row for case in history.cases for row in _turning(history, case)],
        "changes": macros.changes(positions_of(history), axis_name(history), dates_of(history), MOST_LINES),
        "link": f"{FOLDER}/{FILE_NAME}" if (run_dir / FOLDER / FILE_NAME).is_file() else "",
        "command": command_line("versions", "--results", named, "--html", f"{name}/{FOLDER}"),
    }


def _turning(history: VersionHistory, case: CaseHistory) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """Yield where, fix, and (status, its title) at each position, where the status is not the same at all."""
    titles = {status: style.title for status, style in STATUS_STYLES.items()}
    for table in case.tables:
        for fix in table.fixes:
            statuses = [table.cells[fix, name].status or "" for name in history.positions]
            if len(set(statuses) - {""}) > 1:
                yield f"{case.case}, {table.mode}", fix, [(status, titles.get(status, "")) for status in statuses]
