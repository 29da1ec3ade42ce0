"""The rounds of ``torch-sweep``: each version in its turn, one process of the latencies at a visit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from precision_eval.results.asv import Visit
from tools.torch_versions.sweep_costs import cost_kept
from tools.torch_versions.sweep_plan import environment_name, read_durations, runs, selection
from tools.torch_versions.sweep_rounds import note_visit, order_of, put_back_lost

if TYPE_CHECKING:
    from tools.torch_versions.torch_sweep import Sweep

Run = Callable[[str, str, int], str]
"""Measures in a version what a pattern finds, in a round; returns asv's last words where it broke off, else ""."""


def measure_in_turn(sweep: Sweep, versions: Sequence[str], run: Run, say: Callable[[str], None]) -> dict[str, str]:
    """Visit versions round after round until each latency has a sample of every round."""
    trouble: dict[str, str] = {}
    failed: dict[str, set[str]] = {version: set() for version in versions}
    for number in range(1, sweep.rounds + 1):
        for version in order_of(versions, number):
            if version in trouble:
                continue
            lacking, _ = sweep.turned(version)
            wanted = {name for name, done in lacking.items() if done < number} - failed[version]
            if not wanted:
                continue
            say(f"round {number} of {sweep.rounds}: torch {version}, {_count(len(wanted))}")
            words = _visit(sweep, version, number, wanted, run)
            after, _ = sweep.turned(version)
            failed[version] |= {name for name in wanted if name in after and after[name] < number}
            if words:
                trouble[version] = words
    return trouble | {
        version: f"{_count(len(names))} failed: {', '.join(sorted(names))} (all of it: {sweep.log})"
        for version, names in failed.items()
        if names and version not in trouble
    }


def _count(number: int) -> str:
    return f"{number} benchmark{'' if number == 1 else 's'} of latency"


def _visit(sweep: Sweep, version: str, number: int, wanted: Iterable[str], run: Run) -> str:
    """Measure one version in one round; return asv's last words where it broke off."""
    environment, versions = sweep.environment(version), sweep.known()
    on_disk = getattr(sweep.note(version), "bytes", 0)
    with cost_kept(sweep.results, version=version, commit=sweep.commit, folder=environment.folder, on_disk=on_disk):
        for names in runs(wanted, read_durations(sweep.results)):
            visit = Visit(
                machine=sweep.machine,
                commit=sweep.commit,
                environment=environment_name(version, sweep.python),
                round=number,
                at_s=round(time.time(), 3),
                benchmarks={name: versions[name] for name in names},
            )
            note_visit(sweep.results, visit)
            before = {path: path.read_text(encoding="utf-8") for path in sweep.files(version)}
            words = run(version, selection(names), number)
            for path, text in before.items():
                put_back_lost(path, text, names)
            if words:
                return words
    return ""


def measured_otherwise(sweep: Sweep, versions: Iterable[str]) -> str:
    """Say that latencies are there which no round is on record for; "" where there are none."""
    names = sorted({version for version in versions if sweep.turned(version)[1]})
    if not names or sweep.rounds == 1:
        return ""
    return (
        f"Latencies of torch {', '.join(names)} were measured before, each version in one session; they stay as they "
        "are. Another --results measures them in turn."
    )
