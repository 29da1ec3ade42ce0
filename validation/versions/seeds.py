"""Drift over seeds under several torch versions: whether a change of the tracked drift, of one seed, is more than luck.

A *cell* is ``CASE:SIZE``, eager. Each version measures in an interpreter of its own environment, as
``python -m tools torch-sweep`` makes them, with the packages of this checkout; seeds are 0 to N − 1, seed 0 being the
tracked one. A line per version, cell and fix is appended as it ends.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from precision_eval.cases.systems import case_by_id
from precision_eval.core.cells import Cell
from precision_eval.core.environment import cpu_model, source_sha256
from precision_eval.core.errors import ParameterError, RecordError
from precision_eval.history.series import LEAST_SEEDS, SEEDS_NAME, SeedDrift, seed_step
from precision_eval.history.tracking import FULL, metric_by_id, version_of
from precision_eval.measure.registry import run_cell
from validation.frame import Data, Experiment, Figure, Options, Trial

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("2.8.0", "2.9.1")
CELLS = ("attention-decode:dia", "attention-decode:metavoice")
FIXES = ("query_to_half", "float16")
SEEDS = 8
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def measured(cell: str, fix: str, *, seeds: int) -> dict[str, Any]:
    """Measure one fix of a cell over seeds, in this process and under its torch."""
    case, _, size = cell.partition(":")
    entry, metric = case_by_id(case), metric_by_id("drift")
    measure = metric.measure_of(entry.measures)
    if measure is None:
        raise RecordError(f"{case} has no drift; name another case")
    torch.set_num_threads(1)
    drift, shared = {}, {"case": case, "mode": "eager", "device": "cpu", "size": size, "threads": 1}
    with TemporaryDirectory() as folder:
        for seed in range(seeds):
            options = replace(FULL.options, seed=seed, seeds=1)
            seeded = Cell(**shared, fixes=(fix,), measure=measure, options=options)  # type: ignore[arg-type]
            outcome = run_cell(seeded, Path(folder)).outcomes[0]
            if outcome.status != "passed":
                raise RecordError(f"{cell} {fix} {outcome.status} ({outcome.reason}); name fixes that run there")
            drift[str(seed)] = float(metric.read(outcome))  # type: ignore[arg-type]
    ran = torch.__version__.partition("+")[0]
    version = version_of(entry, "eager", metric)
    return {
        **{"key": _key(ran, cell, fix, seeds, version), "mode": "eager", "case": case, "fix": fix, "size": size},
        **{"torch_version": ran, "torch_build": torch.__version__, "benchmark_version": version, "cpu": cpu_model()},
        **{"capability": torch.backends.cpu.get_cpu_capability(), "source_sha256": source_sha256(), "drift": drift},
    }


def _key(version: str, cell: str, fix: str, seeds: int, benchmark_version: str) -> str:
    return f"{version}/{cell}/{fix}/{seeds}/{benchmark_version[:12]}"


def _trials(options: Options) -> list[Trial]:
    """Every version, cell and fix, under today's definition of the drift."""
    seeds, metric = options["seeds"], metric_by_id("drift")
    if seeds < LEAST_SEEDS:
        raise ParameterError(f"seeds={seeds} are too few to judge by; give {LEAST_SEEDS} or more")
    definition = {cell: version_of(case_by_id(cell.partition(":")[0]), "eager", metric) for cell in options["cells"]}
    for version in options["versions"]:
        _python(Path(options["environments"]), version)  # one that is missing is named before anything is measured
    return [
        Trial(_key(version, cell, fix, seeds, definition[cell]), (version, cell, fix))
        for version, cell, fix in itertools.product(options["versions"], options["cells"], options["fixes"])
    ]


def _run(trials: Iterator[Trial], options: Options) -> Iterator[Data]:
    for version, group in itertools.groupby(trials, key=lambda trial: str(trial.spec[0])):
        python = _python(Path(options["environments"]), version)
        yield from measured_elsewhere(python, [trial.spec[1:] for trial in group], options["seeds"])


def measured_elsewhere(python: Path, wanted: list[tuple[str, str]], seeds: int) -> Iterator[dict[str, Any]]:
    """Measure in another interpreter; yield each line as it comes."""
    pairs = [f"{cell}={fix}" for cell, fix in wanted]
    command = [str(python), "-W", "ignore", "-m", "validation.versions.seeds", str(seeds), *pairs]
    environ = {**os.environ, **dict.fromkeys(THREADS, "1"), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environ) as child:
        assert child.stdout is not None
        for text in child.stdout:
            if text.startswith("{"):
                yield json.loads(text)
    if child.returncode:
        raise RecordError(f"{python} could not measure; its message stands above, and what came before is kept")


def _python(environments: Path, version: str) -> Path:
    pythons = sorted(environments.glob(f"torch{version}-py*/bin/python"))
    if not pythons:
        raise RecordError(
            f"{environments} has no environment of torch {version}; `python -m tools torch-sweep --versions {version} "
            f"--environments {environments}` makes it"
        )
    return pythons[0].absolute()


def _figures(lines: list[Data]) -> list[Figure]:
    """The factor between neighbouring versions, over seeds."""
    drifts = [SeedDrift.of(line) for line in {line["key"]: line for line in lines}.values()]
    definitions: Mapping[Any, str] = {drift_seed.key: drift_seed.benchmark_version for drift_seed in drifts}
    versions = sorted({line["torch_version"] for line in lines}, key=lambda text: tuple(map(int, text.split("."))))
    figures = []
    for (before, at), (key, definition) in itertools.product(itertools.pairwise(versions), definitions.items()):
        step = seed_step(drifts, key, before=before, at=at, benchmark_version=definition)
        if step is not None:
            low, high = step.interval
            name = f"{before} → {at} {key[1]}:{key[4]} {key[3]}"
            spread = f"over {step.seeds} seeds, {step.least:.3f} to {step.most:.3f}"
            figures.append(Figure(name, f"×{step.factor:.3f} [{low:.3f}, {high:.3f}] {spread}"))
    return figures


EXPERIMENT = Experiment(
    name="seeds",
    title="drift over seeds under several torch versions: is a change of the tracked drift more than luck",
    trials=_trials,
    run=_run,
    figures=_figures,
    settings={
        "environments": (".asv/torch", ".asv/torch"),
        "versions": (VERSIONS, VERSIONS),
        "cells": (CELLS, CELLS),
        "fixes": (FIXES, FIXES),
        "seeds": (SEEDS, SEEDS),
    },
    file=SEEDS_NAME,
)

if __name__ == "__main__":
    for text in sys.argv[2:]:
        one_cell, _, one_fix = text.partition("=")
        print(json.dumps(measured(one_cell, one_fix, seeds=int(sys.argv[1])), allow_nan=False), flush=True)
