"""What lies beside asv's results of a sweep over torch versions, and asv's result files row by row.

Seconds and bytes; a GB is 10^9 bytes. ``environments.jsonl`` has a note per environment, ``costs.jsonl`` a line for
each time a version was measured, so that a sweep which was stopped and went on has several, which are added up. Both
end in ``.jsonl`` because asv takes every ``.json`` below its results for one of them. *Shared* are files that have
names outside the environment too, as those that uv links into its cache: they are on the disk once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from packaging.version import Version

from precision_eval.core.files import JsonLines, from_json, to_json, worked_out_from
from precision_eval.core.formatting import MISSING
from precision_eval.core.table import Table, make_table, without_empty_columns
from tools.torch_versions.environments import files_on_disk

NOTES_NAME = "environments.jsonl"
COSTS_NAME = "costs.jsonl"


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Append a line of JSON."""
    JsonLines(path).append([to_json(line, what=path.name)])


def read_lines(path: Path) -> list[Any]:
    """Return the lines of a file; none where it is not there."""
    return [from_json(text, where=f"{path} line {number}") for number, text in JsonLines(path).read().lines]


def read_content(path: Path) -> dict[str, Any]:
    """Return what a result file of asv holds; nothing where it is not there, damaged, or not as asv writes it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        columns, rows = content["result_columns"], content["results"].items()
        named = {name: dict(zip(columns, row or (), strict=False)) for name, row in rows}
        return {**content, "rows": named, "build": (content.get("env_vars") or {}).get("TORCH_BUILD")}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def result_rows(path: Path) -> dict[str, dict[str, Any]]:
    """Return benchmark → column → value of a result file."""
    rows: dict[str, dict[str, Any]] = read_content(path).get("rows", {})
    return rows


@contextmanager
def cost_kept(results: Path, *, version: str, commit: str, folder: Path, on_disk: int) -> Iterator[None]:
    """Add a line to ``costs.jsonl`` when what is done inside has ended, or was stopped."""
    line: dict[str, Any] = {"version": version, "commit": commit, "bytes": on_disk, "finished": False}
    line["shared_bytes"] = shared_bytes(folder)
    started = time.monotonic()
    try:
        yield
        line["finished"] = True
    finally:
        line["seconds"] = round(time.monotonic() - started, 1)
        append(results / COSTS_NAME, line)


def shared_bytes(folder: Path) -> int:
    """Return how many bytes on disk of a folder have names outside it too (hard links), each file once."""
    return sum(size for size, shared in files_on_disk(folder) if shared)


def cost_table(results: Path) -> Table | None:
    """Return time and disk of every torch version that was measured; None without notes of environments."""
    rows = []
    with worked_out_from(results / NOTES_NAME, remedy=f"mend it or {COSTS_NAME}, or remove both"):
        notes = {note["version"]: note for note in read_lines(results / NOTES_NAME)}
        costs = read_lines(results / COSTS_NAME)
        for version, note in sorted(notes.items(), key=lambda item: Version(item[0])):
            files = [read_content(path) for path in results.glob(f"*/*-torch-py*-torch{version}.json")]
            taken_s = [row.get("duration") or 0.0 for file in files for row in file.get("rows", {}).values()]
            setup_s = [seconds for file in files for seconds in file.get("durations", {}).values()]
            own = [cost for cost in costs if cost["version"] == version]
            if taken_s:
                rows.append(
                    (
                        f"{note.get('torch_version', version)}, {note['build']}",
                        f"{note['seconds']:.0f} s",
                        _gb(note["bytes"]),
                        _gb(own[-1]["shared_bytes"]) if own else MISSING,
                        f"{len(taken_s)}",
                        _minutes(sum(taken_s) + sum(setup_s)),
                        _minutes(sum(cost["seconds"] for cost in own)) if own else MISSING,
                    )
                )
    head = ("torch", "environment made in", "on disk", "of it shared", "benchmarks", "their time", "the sweep took")
    return without_empty_columns(make_table(head, rows)) if rows else None


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min"
