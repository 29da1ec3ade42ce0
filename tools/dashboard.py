"""The results of every stored run as one page and as data: rows of the report's own tables, with their machine.

A row is a fix of a case on one machine; its figures are those of the terminal's table of that run. Without its script
the page is the whole table; with it rows are picked and sorted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from precision_eval.core.files import to_json
from precision_eval.core.formatting import MISSING
from precision_eval.core.table import Table, make_table, to_csv
from precision_eval.report.drawing import STATUS_STYLES
from precision_eval.report.html.paper import template_environment
from precision_eval.report.summary import summaries_of
from precision_eval.results.machines import Machine, merged
from precision_eval.results.model import Row

HERE = Path(__file__).parent
FACTS = ("hardware", "torch", "instructions")
PLACE = (*FACTS, "case", "size", "mode")
PICKED = ("hardware", "torch", "instructions", "case", "mode", "fix")


def dashboard(results: Path) -> dict[str, str]:
    """Return the page and its data by name: HTML, CSV and JSON."""
    lines = list(_lines(merged(runs_in(results)).machines, results))
    table = Table(
        columns=(*PLACE, "fix", "result", "time ratio [95 %]", "memory", "drift", "sound", "words off", "run"),
        rows=tuple(row for row, _, _ in lines),
        kinds=tuple(kind for _, kind, _ in lines),
        align="l" * len(PLACE) + "llrrrlrl",
        title="Every stored result",
    )
    data = [figures for _, _, figures in lines]
    page = (
        template_environment(HERE)
        .get_template("dashboard.html")
        .render(
            table=table,
            choices=[(name, sorted({str(figures[name]) for figures in data})) for name in PICKED],
            script=(HERE / "dashboard.js").read_text(encoding="utf-8"),
            status_styles=STATUS_STYLES,
        )
    )
    rows = [["" if value is None else str(value) for value in figures.values()] for figures in data]
    return {
        "dashboard.html": page,
        "dashboard.csv": to_csv(make_table(list(data[0]), rows)),
        "dashboard.json": to_json(data, what="the dashboard") + "\n",
    }


def runs_in(results: Path) -> list[Path]:
    """Return the folders that `run` left: what a trial stored has no environment, or no figures of a fix."""
    found = (path.parent for path in sorted(results.rglob("records.jsonl")) if path.parent.name != "allocator")
    return [folder for folder in found if (folder / "environment.json").is_file()]


def _lines(machines: Iterable[Machine], results: Path) -> Iterator[tuple[tuple[str, ...], str, dict[str, Any]]]:
    """Yield per fix the cells of its row, the row's kind, and the same as data."""
    for machine in machines:
        run = machine.run.relative_to(results.parent).as_posix()
        for summary in summaries_of(group for group in machine.groups if not group.fault):
            group, table = summary.group, summary.full_table()
            place = (*(machine.facts.get(name, MISSING) for name in FACTS), group.case, group.size)
            place = (*place, group.mode + group.pins)
            for number, cells in enumerate(table.rows):
                fix = cells[0].removeprefix("≈ ")
                row = next(row for row in group.fixes if row.fix == fix)
                figures = dict(zip(PLACE, place, strict=True)) | {"fix": fix, "result": cells[1]} | _figures(row)
                yield (*place, *cells, run), table.kind(number), figures | {"pick": fix == summary.pick, "run": run}


def _figures(row: Row) -> dict[str, Any]:
    time = row.time
    return {
        "time_ratio": time and time.value,
        "time_ratio_low": time and time.low,
        "time_ratio_high": time and time.high,
        "memory_bytes": row.memory_bytes,
        "drift": row.drift and row.drift.value,
        "sound": row.sound and row.sound.verdict,
    }
