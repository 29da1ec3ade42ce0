"""What torch versions change, in short, for the HTML report of a run: the headline, the fixes whose status turns over
and every change as ready HTML. The HTML report over versions has the figures and the tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from precision_eval.core.drawing import STATUS_STYLES
from precision_eval.core.templating import template_environment
from precision_eval.results.asv import read_results
from precision_eval.studies.versions.history import CaseHistory, VersionHistory, history_of
from precision_eval.studies.versions.html_report import FILE_NAME, axis_name, dates_of
from precision_eval.studies.versions.text import headline, positions_of

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
