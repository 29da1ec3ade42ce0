"""Drift over seeds under several torch versions: whether a change of the tracked drift, of one seed, is more than luck.

Conventions: a *cell* is ``CASE:SIZE``, eager. Each version measures in an interpreter of its own environment, as
``precision-eval torch-sweep`` makes them, with the packages of this checkout; seeds are 0 to N − 1, seed 0 being the
tracked one. A line per version, cell and fix is appended as it ends, and lines that are there are not measured again.

    python -m validation.versions.seeds --environments .asv/torch --out results/torch-versions/drift-seeds.jsonl
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from precision_eval.core.errors import PrecisionEvalError, RecordError
from precision_eval.core.json_lines import TrialFile
from precision_eval.studies.versions.drift_seeds import LEAST_SEEDS, SEEDS_NAME, read_drift_seeds, seed_step

ROOT = Path(__file__).resolve().parents[2]
DEFAULT = Path("results/torch-versions") / SEEDS_NAME
VERSIONS = ("2.8.0", "2.9.1")
CELLS = ("attention-decode:dia", "attention-decode:metavoice")
FIXES = ("query_to_half", "float16")
SEEDS = 8
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def measured(cell: str, fix: str, *, seeds: int) -> dict[str, Any]:
    """Measure one fix of a cell over seeds, in this process and under its torch."""
    import torch

    from precision_eval.core.environment import cpu_model, source_sha256
    from precision_eval.measure.registry import run_cell
    from precision_eval.studies.tracking import FULL, Place, version_of
    from precision_eval.studies.tracking.metrics import metric_by_id

    case, _, size = cell.partition(":")
    place, metric = Place(case=case, mode="eager", size=size), metric_by_id("drift")
    measure = metric.measure_of(place.entry.measures)
    if measure is None:
        raise RecordError(f"{case} has no drift; name another case")
    torch.set_num_threads(1)
    drift = {}
    with TemporaryDirectory() as folder:
        for seed in range(seeds):
            options = replace(FULL.options, seed=seed)
            outcome = run_cell(place.cell((fix,), measure, options), Path(folder)).outcomes[0]
            if outcome.status != "passed":
                raise RecordError(f"{cell} {fix} {outcome.status} ({outcome.reason}); name fixes that run there")
            drift[str(seed)] = float(metric.read(outcome))  # type: ignore[arg-type]
    ran = torch.__version__.partition("+")[0]
    version = version_of(place.entry, "eager", metric)
    return {
        "key": _key(ran, cell, fix, seeds, version),
        "mode": "eager",
        "case": case,
        "fix": fix,
        "size": size,
        "torch_version": ran,
        "torch_build": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "benchmark_version": version,
        "cpu": cpu_model(),
        "source_sha256": source_sha256(),
        "drift": drift,
    }


def _key(version: str, cell: str, fix: str, seeds: int, benchmark_version: str) -> str:
    return f"{version}/{cell}/{fix}/{seeds}/{benchmark_version[:12]}"


def missing(
    path: Path, versions: Sequence[str], cells: Sequence[str], fixes: Sequence[str], *, seeds: int
) -> dict[str, list[tuple[str, str]]]:
    """Return torch version → cells and fixes that the file does not hold yet, under today's definition of the drift."""
    from precision_eval.cases.systems import case_by_id
    from precision_eval.studies.tracking import version_of
    from precision_eval.studies.tracking.metrics import metric_by_id

    there, metric = TrialFile(path).keys(), metric_by_id("drift")
    definition = {cell: version_of(case_by_id(cell.partition(":")[0]), "eager", metric) for cell in cells}
    wanted = [(cell, fix) for cell in cells for fix in fixes]
    return {
        version: [one for one in wanted if _key(version, *one, seeds, definition[one[0]]) not in there]
        for version in versions
    }


def _measured_elsewhere(python: Path, wanted: Sequence[tuple[str, str]], seeds: int) -> Iterator[dict[str, Any]]:
    """Measure in another interpreter; yield each line as it comes."""
    pairs = [f"{cell}={fix}" for cell, fix in wanted]
    command = [str(python), "-W", "ignore", "-m", "validation.versions.seeds", "--seeds", str(seeds), "--one", *pairs]
    environ = {**os.environ, **dict.fromkeys(THREADS, "1"), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environ) as child:
        assert child.stdout is not None
        for text in child.stdout:
            if text.startswith("{"):
                yield json.loads(text)
    if child.returncode:
        raise RecordError(f"{python} could not measure; its message stands above, and what came before is kept")


def main() -> int:
    """Measure what is missing, then say what the seeds say."""
    parser = _parser()
    options = parser.parse_args()
    if options.one:
        for text in options.one:
            cell, _, fix = text.partition("=")
            print(json.dumps(measured(cell, fix, seeds=options.seeds), allow_nan=False), flush=True)
        return 0
    if options.out.name != SEEDS_NAME:
        parser.exit(2, f"{parser.prog}: --out {options.out} would not be found; name it {SEEDS_NAME}\n")
    if options.seeds < LEAST_SEEDS:
        parser.exit(2, f"{parser.prog}: --seeds {options.seeds} are too few to judge by; give {LEAST_SEEDS} or more\n")
    try:
        pythons = {version: _python(options.environments, version) for version in options.versions}
        file = TrialFile(options.out)
        waiting = missing(options.out, options.versions, options.cells, options.fixes, seeds=options.seeds)
        for version, wanted in waiting.items():
            for line in _measured_elsewhere(pythons[version], wanted, options.seeds) if wanted else ():
                file.append(line)
                print(f"torch {line['torch_version']}: {line['case']}:{line['size']} {line['fix']}", flush=True)
        _say(options.out, options.versions)
    except PrecisionEvalError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    return 0


def _python(environments: Path, version: str) -> Path:
    found = sorted(environments.glob(f"torch{version}-py*/bin/python"))
    if not found:
        raise RecordError(
            f"{environments} has no environment of torch {version}; `precision-eval torch-sweep --versions {version} "
            f"--environments {environments}` makes it"
        )
    return found[0].absolute()


def _say(path: Path, versions: Sequence[str]) -> None:
    """Print the factor between neighbouring versions."""
    found = read_drift_seeds(path.parent)
    places: Mapping[Any, str] = {one.key: one.benchmark_version for one in found}
    for before, at in itertools.pairwise(versions):
        for key, definition in places.items():
            step = seed_step(found, key, before=before, at=at, benchmark_version=definition)
            if step is not None:
                low, high = step.interval
                print(
                    f"{before} → {at} {key[1]}:{key[4]} {key[3]}: ×{step.factor:.3f} [{low:.3f}, {high:.3f}] over "
                    f"{step.seeds} seeds, {step.least:.3f} to {step.most:.3f}"
                )


def _parser() -> argparse.ArgumentParser:
    def split(text: str) -> tuple[str, ...]:
        return tuple(part for part in text.split(",") if part)

    parser = argparse.ArgumentParser(prog="python -m validation.versions.seeds", description=__doc__.splitlines()[0])
    parser.add_argument("--environments", type=Path, default=Path(".asv/torch"), help="folder of torch-sweep's")
    parser.add_argument("--versions", type=split, default=VERSIONS, help="torch versions, comma-separated, in order")
    parser.add_argument("--cells", type=split, default=CELLS, help="CASE:SIZE, comma-separated")
    parser.add_argument("--fixes", type=split, default=FIXES, help="comma-separated")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--out", type=Path, default=DEFAULT, help=f"named {SEEDS_NAME}, beside asv's results")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
