"""What a sweep over torch versions costs: time and disk per version.

Conventions: seconds and bytes; a GB is 10^9 bytes. Beside asv's results lie ``environments.jsonl`` (a note per
environment: how long it took to make, what it holds on disk) and ``costs.jsonl``: a line for each time a version was
measured, so that a sweep which was stopped and went on has several, which are added up. Both end in ``.jsonl`` because
asv takes every ``.json`` below its results for one of them. *Shared* are files that have names outside the environment
too, as those that uv links into its cache: they are on the disk once. asv's own count of seconds holds its benchmarks
and what they set up; the sweep's holds asv's start, its list of benchmarks and the install of the project as well.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precision_eval.core.errors import RecordError
from tools.torch_versions.sweep_plan import numbers

NOTES_NAME = "environments.jsonl"
COSTS_NAME = "costs.jsonl"


@dataclass(frozen=True, kw_only=True)
class SweepCost:
    """What one torch version cost."""

    version: str
    torch_version: str
    build: str
    environment_s: float
    bytes: int
    shared_bytes: int | None
    sweep_s: float | None
    benchmarks: int
    benchmarks_s: float


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
        results.mkdir(parents=True, exist_ok=True)
        with (results / COSTS_NAME).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, sort_keys=True) + "\n")


def read_costs(results: Path) -> tuple[SweepCost, ...]:
    """Return what each version cost, by version."""
    notes = {line["version"]: line for line in _lines(results / NOTES_NAME, ("version", "seconds", "bytes", "build"))}
    costs = _lines(results / COSTS_NAME, ("version", "seconds", "shared_bytes"))
    found = []
    for version in sorted(notes, key=numbers):
        taken = _asv_seconds(results, version)
        if not taken:
            continue
        note, own = notes[version], [cost for cost in costs if cost["version"] == version]
        found.append(
            SweepCost(
                version=version,
                torch_version=str(note.get("torch_version", version)),
                build=note["build"],
                environment_s=float(note["seconds"]),
                bytes=int(note["bytes"]),
                shared_bytes=int(own[-1]["shared_bytes"]) if own else None,
                sweep_s=sum(float(one["seconds"]) for one in own) if own else None,
                benchmarks=sum(name is not None for name, _ in taken),
                benchmarks_s=sum(seconds for _, seconds in taken),
            )
        )
    return tuple(found)


def _lines(path: Path, keys: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the objects of a file, one per line; none where it is not there."""
    if not path.is_file():
        return []
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            one = json.loads(line)
            lacking = [key for key in keys if key not in one]
        except (ValueError, TypeError) as error:
            raise RecordError(f"{path} line {number} is no JSON object; remove that line") from error
        if lacking:
            raise RecordError(f"{path} line {number} lacks {', '.join(lacking)}; remove that line")
        found.append(one)
    return found


def _asv_seconds(results: Path, version: str) -> list[tuple[str | None, float]]:
    """Return benchmark and its seconds, set-ups under None, of a version's result files."""
    found: list[tuple[str | None, float]] = []
    for path in sorted(results.glob(f"*/*-torch-py*-torch{version}.json")):
        try:
            content: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            columns = content["result_columns"]
            for name, row in content["results"].items():
                fields = dict(zip(columns, row, strict=False))
                found.append((name, float(fields.get("duration") or 0.0)))
            found += [(None, float(seconds)) for seconds in content.get("durations", {}).values()]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordError(f"{path} is no result file of asv ({error!r}); remove it and run the sweep") from error
    return found


def shared_bytes(folder: Path) -> int:
    """Return how many bytes on disk of a folder have names outside it too (hard links), each file once."""
    seen: dict[tuple[int, int], list[int]] = {}
    for where, _, names in os.walk(folder):
        for name in names:
            found = (Path(where) / name).lstat()
            links = seen.setdefault((found.st_dev, found.st_ino), [found.st_blocks * 512, found.st_nlink, 0])
            links[2] += 1
    return sum(size for size, names_in_all, names_here in seen.values() if names_in_all > names_here)
