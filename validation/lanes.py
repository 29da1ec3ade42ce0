"""Lanes and engines beside one lane: are verdicts the same, how much sooner are untimed cells done, what is lost.

Every lane and engine is started once and has answered before anything is counted; each cell has a fresh process, as in
any run. Verdicts are always of four lanes: on fewer cores some lanes share one, which disturbs them more than the
command allows, since it refuses such lanes. Untimed cells are of as many lanes as there are cores, at most four.
"""

from __future__ import annotations

import functools
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory

from precision_eval.core.cells import Options as CellOptions
from precision_eval.core.environment import collect, usable_cores
from precision_eval.core.records import RecordFile
from precision_eval.results.reading import groups_of
from precision_eval.run.engines import Engine, EngineExecutor, NodeCall, engine_named
from precision_eval.run.executor import modules_to_preload
from precision_eval.run.lanes import Lane, LocalLanes, lanes_of
from precision_eval.run.plan import Selection, make_plan
from precision_eval.run.runner import run_plan
from validation.frame import Data, Experiment, Figure, Options, Trial

LANES = 4
ONE, MANY, FOUR = "local:1", f"local:{min(LANES, usable_cores())}", f"{LANES} lanes"
ENGINES = ("dask", "ray", "slurm:local")
KINDS = ("verdicts", "untimed", *ENGINES)
SAME, SPEED_UP, LOST_S = 0.98, 0.9, 2.0
_CASES = ("attention-decode", "attention-prefill")
_TIMED = Selection(cases=_CASES, modes=("eager",), measures=("latency",), options=CellOptions(budget_s=0.4))
_UNTIMED = Selection(cases=_CASES, sizes=("dia",), measures=("drift",))
_SHORT = Selection(cases=_CASES[:1], sizes=("tiny",), measures=("drift",))


def _trials(options: Options) -> list[Trial]:
    counts = {kind: options["repeats" if kind == "verdicts" else "pairs"] for kind in options["kinds"]}
    return [Trial(f"{kind} {number}", (kind, number)) for kind, count in counts.items() for number in range(count)]


def _run(trials: Iterator[Trial], options: Options) -> Iterator[Data]:
    """Run every trial's cells on one lane and on the other side, in turns of who begins."""
    with TemporaryDirectory(prefix="lanes-") as name, ExitStack() as opened:
        started = functools.cache(lambda engine: opened.enter_context(_started(engine, Path(name))))
        for trial in trials:
            kind, number = trial.spec
            timed = replace(_TIMED, sizes=options["sizes"])
            selection = {"verdicts": timed, "untimed": _UNTIMED}.get(kind, _SHORT)
            sides = {"one": ONE, "other": {"verdicts": FOUR, "untimed": MANY}.get(kind, kind)}
            line: Data = {"key": trial.key, "kind": kind, "engine": sides["other"]}
            line |= {"cores": usable_cores(), "load": os.getloadavg()[0]}
            for side in sorted(sides, reverse=bool(number % 2)):
                folder = Path(name) / f"{trial.key} {side}"
                line[side] = _side(started(sides[side]), selection, folder)
            yield line


def _started(engine: str, folder: Path) -> EngineExecutor:
    """Return an engine of which every lane has loaded torch."""
    preload = modules_to_preload(*make_plan(_TIMED).modules, compiled=False)
    if engine == FOUR:
        runs_on: Engine = _four_lanes()
    else:
        runs_on = engine_named(engine, device="cpu", threads=1, run_dir=folder, workers=None)
    executor = EngineExecutor(runs_on, NodeCall(device="cpu", preload=preload, timeout_s=900.0))
    for asked in [executor.submit(time.sleep, 1.0) for _ in range(runs_on.lanes)]:
        asked.result()
    return executor


def _four_lanes() -> LocalLanes:
    """Return four lanes, in turns on the cores of this machine."""
    cores = [lane.cores for lane in lanes_of(str(min(LANES, usable_cores())), device="cpu", threads=1)]
    return LocalLanes([Lane(f"{n + 1} of {LANES}", cores=cores[n % len(cores)]) for n in range(LANES)])


def _side(executor: EngineExecutor, selection: Selection, folder: Path) -> Data:
    plan, environment = make_plan(selection), executor.submit(collect, "cpu").result()
    lanes = executor.begin(environment, "cpu", memory_share=None, purpose="", run_dir=folder)
    began = time.monotonic()
    records = run_plan(
        plan, executor, RecordFile(folder / "records.jsonl"), environment="here", max_parallel=lanes, lanes=True
    )
    return {
        "seconds": time.monotonic() - began,
        "calls_s": sum(record.wall_s for record in records),  # untimed cells hold a fix each
        "cells": len(plan.cells),
        "lanes": lanes,
        "failed": sorted(record.cell for record in records if record.status not in ("passed", "raised", "unsupported")),
        "verdicts": {
            f"{group.title} {row.fix}": group.verdict_of(row)
            for group in groups_of(records)
            for row in group.fixes
            if row.time is not None and not group.is_baseline(row)
        },
    }


def _compared(pairs: Iterable[tuple[Data, Data]]) -> Counter[str]:
    """Count how the verdicts of two sides stand to each other, cell by cell."""
    counts: Counter[str] = Counter()
    for first, second in pairs:
        for cell in first["verdicts"].keys() | second["verdicts"].keys():
            both = (first["verdicts"].get(cell, "missing"), second["verdicts"].get(cell, "missing"))
            same = "same" if both[0] == both[1] else "undecided on one side" if "undecided" in both else "unlike"
            counts[same] += 1
    return counts


def _verdicts(lines: list[Data]) -> list[Figure]:
    figures = []
    where = f"{lines[0]['engine']} of {lines[0]['cores']} cores"
    sides = {
        f"verdicts on {where} beside {ONE}": [(line["one"], line["other"]) for line in lines],
        f"{ONE} beside itself, one repeat after the other": list(pairwise(line["one"] for line in lines)),
    }
    for number, (name, pairs) in enumerate(sides.items()):
        counts = _compared(pairs)
        met = counts["same"] >= SAME * counts.total() and not counts["unlike"] if number == 0 and counts else None
        text = f"{counts['same']} of {counts.total()} alike, {counts['undecided on one side']} undecided on one side"
        target = f"≥ {SAME:.0%}, none unlike" if number == 0 else ""
        found = f"{text}, {counts['unlike']} unlike; load {mean(line['load'] for line in lines):.0f}"
        figures.append(Figure(f"{name}: {len(pairs)} pairs", found, target, met))
    return figures


def _lost_s(side: Data) -> float:
    """Seconds of a lane in which no cell was measured, for each cell: what is handed out at a time."""
    return float((side["seconds"] * side["lanes"] - side["calls_s"]) / side["cells"])


def _engine(kind: str, lines: list[Data]) -> list[Figure]:
    engine, others, ones = lines[0]["engine"], [line["other"] for line in lines], [line["one"] for line in lines]
    if kind == "untimed":
        ratios = [one["seconds"] / (other["seconds"] * other["lanes"]) for one, other in zip(ones, others, strict=True)]
        text = f"{median(ratios):.2f} × {others[0]['lanes']} lanes [{min(ratios):.2f}, {max(ratios):.2f}]"
        figure = Figure(f"speed of untimed cells, {engine}", text, f"≥ {SPEED_UP} × lanes", median(ratios) >= SPEED_UP)
    else:
        lost = mean(map(_lost_s, others))
        text = f"{lost:.2f} s a cell on {others[0]['lanes']} workers; {ONE} {mean(map(_lost_s, ones)):.2f} s"
        figure = Figure(f"time lost on {engine}", text, f"≤ {LOST_S:g} s", lost <= LOST_S)
    failed = sum(len(side["failed"]) for side in (*ones, *others))
    load = mean(line["load"] for line in lines)
    return [Figure(figure.name, f"{figure.found}; {failed} failed; load {load:.0f}", figure.target, figure.met)]


def _figures(content: Data) -> list[Figure]:
    kinds = {kind: [line for line in content["trials"] if line["kind"] == kind] for kind in KINDS}
    made = {kind: _verdicts(own) if kind == "verdicts" else _engine(kind, own) for kind, own in kinds.items() if own}
    return [figure for own in made.values() for figure in own]


EXPERIMENT = Experiment(
    name="lanes",
    title="lanes beside one: verdicts of four, speed of untimed cells; what engines lose",
    trials=_trials,
    run=_run,
    figures=_figures,
    summary=lambda lines, options: {"trials": lines},
    settings={"kinds": (KINDS[:2], KINDS), "repeats": (3, 20), "pairs": (2, 3), "sizes": (("tiny",), ("tiny", "dia"))},
)
