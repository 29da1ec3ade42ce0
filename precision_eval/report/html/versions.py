"""What torch versions change, in short: the history over asv's results, and the fixes whose status turns over.

Conventions: sentences and lines are those of the page over versions (``report.versions_text``); that page has the
figures and every change.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from precision_eval.report.plots_versions import STATUS_LOOKS, StatusLook
from precision_eval.report.versions_page import PAGE_NAME
from precision_eval.report.versions_text import Position, headline, positions_of
from precision_eval.results.asv import read_results
from precision_eval.studies.versions.history import CaseHistory, FixTable, VersionHistory, history_of

FOLDER = "versions"


@dataclass(frozen=True, kw_only=True)
class Turning:
    """A fix whose status is not the same at every version."""

    where: str
    fix: str
    looks: tuple[tuple[str, StatusLook | None], ...]


@dataclass(frozen=True, kw_only=True)
class Versions:
    """What the page shows of torch versions."""

    history: VersionHistory
    headline: str
    positions: tuple[Position, ...]
    turning: tuple[Turning, ...]
    link: str
    command: str


def versions_of(results: Path, *, run_dir: Path, shown: str) -> Versions:
    """Tell what a folder of results says."""
    history = history_of(read_results(results))
    page = run_dir / FOLDER / PAGE_NAME
    named = results.name if results.is_absolute() else results.as_posix()
    return Versions(
        history=history,
        headline=headline(history),
        positions=positions_of(history),
        turning=tuple(one for case in history.cases for one in _turning(history, case)),
        link=f"{FOLDER}/{PAGE_NAME}" if page.is_file() else "",
        command=f"precision-eval versions --results {named} --html {shown}/{FOLDER}",
    )


def _turning(history: VersionHistory, case: CaseHistory) -> list[Turning]:
    found = []
    for table in case.tables:
        for fix in table.fixes:
            statuses = [table.cells[fix, name].status for name in history.positions]
            if len({one for one in statuses if one is not None}) > 1:
                looks = tuple((one or "", STATUS_LOOKS.get(one or "")) for one in statuses)
                found.append(Turning(where=_where(case, table), fix=fix, looks=looks))
    return found


def _where(case: CaseHistory, table: FixTable) -> str:
    return f"{case.case}, {table.mode}"
