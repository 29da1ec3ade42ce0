"""Latencies measured in rounds: every torch version once, then every version again.

Why: what differs from one session to the next is then among a version's samples and not only between versions. Each
visit times one process and asv appends its sample to those of the visits before, so a version has as many samples as
rounds. Conventions: *turned* benchmarks are those with a sample per process. Beside asv's results lies
``rounds.jsonl`` (asv takes every ``.json`` there for a result), a line as each visit begins; of visits that were
stopped and made again the last one counts. How many rounds are done is what asv's file says: its samples.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any

from precision_eval.core.files import written_whole
from precision_eval.results.asv import ROUNDS_NAME, Visit
from precision_eval.studies.tracking.metrics import METRICS
from tools.torch_versions.sweep_plan import result_rows

_TURNED = tuple(metric.method for metric in METRICS if metric.samples)


def is_turned(name: str) -> bool:
    """Say whether a benchmark is measured in rounds."""
    return name.rpartition(".")[2] in _TURNED


def order_of(versions: Sequence[str], number: int) -> tuple[str, ...]:
    """Return the order of a round: every second one goes back, so that a steady drift of the machine cancels."""
    return tuple(versions if number % 2 else reversed(versions))


def note_visit(results: Path, visit: Visit) -> None:
    """Write a visit down as it begins."""
    results.mkdir(parents=True, exist_ok=True)
    with (results / ROUNDS_NAME).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(visit), sort_keys=True) + "\n")


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
