"""``results.csv``: one line per cell, every scalar of the records as a column, for other tools.

Columns are the cell's identity, its status per measure, then ``measure.path.to.scalar`` with the unit in the name, as
in the records. Lists (series, raw samples) stay in ``records.jsonl``. Empty means not measured.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from precision_eval.results.model import Group, Row
from precision_eval.results.reading import Run

IDENTITY = ("case", "size", "mode", "device", "pins", "threads", "fix", "role", "status", "reason")


def write_csv(run: Run, path: Path) -> Path:
    """Write the table of all cells to `path` (UTF-8, comma, header line) and return it."""
    lines = [_line(section, row) for section in run.sections for row in section.rows]
    found = dict.fromkeys(name for line in lines for name in line if name not in IDENTITY)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=[*IDENTITY, *sorted(found)], restval="")
        writer.writeheader()
        writer.writerows(lines)
    return path


def _line(section: Group, row: Row) -> dict[str, Any]:
    line: dict[str, Any] = {
        "case": section.case,
        "size": section.size,
        "mode": section.mode,
        "device": section.device,
        "pins": section.pins.lstrip(","),
        "threads": section.threads,
        "fix": row.fix,
        "role": row.role,
        "status": row.status,
        "reason": row.reason,
    }
    for measure, record in row.records.items():
        line[f"{measure}.status"] = record.status
        line |= {f"{measure}.{path}": value for path, value in _scalars(record.data or {})}
    return line


def _scalars(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in node.items():
        if isinstance(value, Mapping):
            yield from _scalars(value, f"{prefix}{name}.")
        elif value is not None and not isinstance(value, list):
            yield f"{prefix}{name}", value
