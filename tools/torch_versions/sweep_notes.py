"""What lies beside asv's results of a sweep over torch versions: what each version cost, and its rounds of latencies.

Conventions: seconds and bytes; a GB is 10^9 bytes. ``environments.jsonl`` has a note per environment (how long it took
to make, what it holds on disk), ``costs.jsonl`` a line for each time a version was measured, so that a sweep which was
stopped and went on has several, which are added up; ``rounds.jsonl`` a line as each visit begins. All end in ``.jsonl``
because asv takes every ``.json`` below its results for one of them. *Shared* are files that have names outside the
environment too, as those that uv links into its cache: they are on the disk once. asv's own count of seconds holds its
benchmarks and what they set up; the sweep's holds asv's start, its list of benchmarks and the project's install too.

Latencies are measured in rounds: every torch version once, then every version again. What differs from one session to
the next is then among a version's samples and not only between versions. Each visit times one process and asv appends
its sample to those of the visits before. *Turned* benchmarks are those with a sample per process. Of visits that were
stopped and made again the last one counts. How many rounds are done is what asv's file says: its samples.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from precision_eval.core.errors import RecordError
from precision_eval.core.files import JsonLines, from_json, to_json, worked_out_from, written_whole
from precision_eval.results.asv import ROUNDS_NAME, Visit
from precision_eval.studies.tracking.definitions import METRICS
from tools.torch_versions.environments import Note, files_on_disk
from tools.torch_versions.sweep_plan import numbers, result_rows

NOTES_NAME = "environments.jsonl"
COSTS_NAME = "costs.jsonl"


def _append(path: Path, line: Mapping[str, Any]) -> None:
    JsonLines(path).append([to_json(line, what=path.name)])


def _read(path: Path, keys: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the objects of a file, one per line; none where it is not there."""
    lines = []
    for number, text in JsonLines(path).read().lines:
        where = f"{path} line {number}"
        line = from_json(text, where=where)
        lacking = [key for key in keys if not isinstance(line, dict) or key not in line]
        if lacking:
            raise RecordError(f"{where} lacks {', '.join(lacking)}; remove that line")
        lines.append(line)
    return lines


def keep_note(results: Path, note: Note) -> None:
    """Keep the note of an environment beside the results, once."""
    line = {**asdict(note), "stubs": list(note.stubs)}
    if line not in _read(results / NOTES_NAME, ()):
        _append(results / NOTES_NAME, line)


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
        _append(results / COSTS_NAME, line)


def read_costs(results: Path) -> tuple[SweepCost, ...]:
    """Return what each version cost, by version."""
    notes = {line["version"]: line for line in _read(results / NOTES_NAME, ("version", "seconds", "bytes", "build"))}
    costs = _read(results / COSTS_NAME, ("version", "seconds", "shared_bytes"))
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


def _asv_seconds(results: Path, version: str) -> list[tuple[str | None, float]]:
    """Return benchmark and its seconds, set-ups under None, of a version's result files."""
    taken: list[tuple[str | None, float]] = []
    for path in sorted(results.glob(f"*/*-torch-py*-torch{version}.json")):
        with worked_out_from(path, remedy="remove it and run the sweep"):
            content = json.loads(path.read_text(encoding="utf-8"))
            for name, row in content["results"].items():
                fields = dict(zip(content["result_columns"], row, strict=False))
                taken.append((name, float(fields.get("duration") or 0.0)))
            taken += [(None, float(seconds)) for seconds in content.get("durations", {}).values()]
    return taken


def shared_bytes(folder: Path) -> int:
    """Return how many bytes on disk of a folder have names outside it too (hard links), each file once."""
    return sum(size for size, shared in files_on_disk(folder) if shared)


_TURNED = tuple(metric.method for metric in METRICS if metric.samples)


def is_turned(name: str) -> bool:
    """Say whether a benchmark is measured in rounds."""
    return name.rpartition(".")[2] in _TURNED


def order_of(versions: Sequence[str], number: int) -> tuple[str, ...]:
    """Return the order of a round: every second one goes back, so that a steady drift of the machine cancels."""
    return tuple(versions if number % 2 else reversed(versions))


def note_visit(results: Path, visit: Visit) -> None:
    """Write a visit down as it begins."""
    _append(results / ROUNDS_NAME, asdict(visit))


def rounds_done(benchmarks: Mapping[str, str], files: Iterable[Path]) -> dict[str, int]:
    """Return how many samples the fullest case of each turned benchmark has; 0 without a result of its version."""
    done = dict.fromkeys(filter(is_turned, benchmarks), 0)
    for path in files:
        for name, fields in result_rows(path).items():
            if name in done and fields.get("version") == benchmarks[name]:
                done[name] = max((len(case) for case in fields.get("samples") or () if case), default=0)
    return done


def put_back_lost(path: Path, before: str, names: Iterable[str]) -> tuple[str, ...]:
    """Put back what a failed visit cost: where a case fails, asv drops the samples that it had from earlier rounds."""
    old, new = json.loads(before), json.loads(path.read_text(encoding="utf-8"))
    lost = []
    for name in names:
        fullest = [_samples(content, name) for content in (old, new)]
        if any(case and not later for case, later in zip_longest(*fullest)):
            new["results"][name] = old["results"][name]
            lost.append(name)
    if lost and old["result_columns"] == new["result_columns"]:
        with written_whole(path) as partial:
            partial.write_text(json.dumps(new), encoding="utf-8")
        return tuple(lost)
    return ()


def _samples(content: Mapping[str, Any], name: str) -> list[Any]:
    """Return the samples of each case of a benchmark; empty where it has none."""
    row = dict(zip(content["result_columns"], content["results"].get(name) or (), strict=False))
    return list(row.get("samples") or ())


def unfinished(
    benchmarks: Mapping[str, str],
    files: Iterable[Path],
    noted: Iterable[tuple[str, str]],
    *,
    rounds: int,
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the turned benchmarks that lack rounds, and those that were measured otherwise and are left alone."""
    known = set(noted)
    done = rounds_done(benchmarks, files)
    left = tuple(name for name, count in done.items() if count and (name, benchmarks[name]) not in known)
    lacking = {name: count for name, count in done.items() if count < rounds and name not in left}
    return lacking, left
