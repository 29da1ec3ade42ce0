"""Result folders in asv's own format, made up: what each run found is written out, nothing is measured."""

import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

STATS = ("ci_99_a", "ci_99_b", "q_25", "q_75", "number", "repeat")
COLUMNS = ["result", "params", "version", "started_at", "duration", *(f"stats_{name}" for name in STATS)]
COLUMNS += ["samples", "profile"]
MACHINE = {"arch": "x86_64", "num_cpu": "2", "os": "Linux 6", "ram": "8000000"}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One result file.

    `values` maps ``"eager.metavoice_decode.track_drift"`` to what each (fix, size) found: a number, a list of samples
    (one per process; the value is their median), None where it failed, or NaN where it is not applicable.
    """

    torch: str
    values: dict[str, dict[tuple[str, str], Any]]
    commit: str = "a" * 40
    machine: str = "lab"
    python: str = "3.11"
    cuda: bool = False
    cpu: str = "Testium 1"
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> str:
        return f"virtualenv-py{self.python}-torch{self.torch}"


def write_run(root: Path, run: Run) -> Path:
    """Write one result file and its machine's file; return the path of the first."""
    home = root / run.machine
    home.mkdir(parents=True, exist_ok=True)
    _write(home / "machine.json", {"machine": run.machine, "cpu": run.cpu, **MACHINE, "version": 1})
    results = {}
    for name, cells in run.values.items():
        version = run.versions.get(name, "v1")
        axes = [list(dict.fromkeys(key[axis] for key in cells)) for axis in (0, 1)]
        results[name] = _row([cells.get(key) for key in itertools.product(*axes)], _reprs(axes), version)
    major, minor, patch = map(int, run.torch.split("."))
    build = major * 1_000_000 + minor * 1000 + patch
    for method, value in (("track_torch_version", build), ("track_is_cuda_build", int(run.cuda))):
        results[f"build.torch_build.{method}"] = _row([value], [], "v1")
    asked = {"torch": run.torch}
    content = {
        "commit_hash": run.commit, "env_name": run.environment, "date": 1_780_000_000_000,
        "params": {"machine": run.machine, "cpu": run.cpu, **MACHINE, "python": run.python, **asked},
        "python": run.python, "requirements": asked, "env_vars": {}, "result_columns": COLUMNS, "results": results,
        "durations": {}, "version": 2,
    }  # fmt: skip
    path = home / f"{run.commit[:8]}-{run.environment}.json"
    _write(path, content)
    return path


def write_runs(root: Path, runs: list[Run]) -> Path:
    for run in runs:
        write_run(root, run)
    return root


def _row(found: list[Any], params: list[list[str]], version: str) -> list[Any]:
    """One benchmark's row, trailing nulls dropped as asv does."""
    samples = [one if isinstance(one, list) else None for one in found]
    values = [median(one) if isinstance(one, list) else one for one in found]
    low = [min(one) if one else None for one in samples]
    high = [max(one) if one else None for one in samples]
    number = [1 if one else None for one in samples]
    repeat = [len(one) if one else None for one in samples]
    row = [values, params, version, 1_780_000_000_000, 1.5, low, high, low, high, number, repeat, samples, None]
    row = [None if isinstance(cell, list) and cell and all(one is None for one in cell) else cell for cell in row]
    while row[-1] is None:
        row.pop()
    return row


def _reprs(axes: list[list[str]]) -> list[list[str]]:
    return [[repr(value) for value in axis] for axis in axes]


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")
