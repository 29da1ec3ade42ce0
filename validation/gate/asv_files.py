"""Sets as result files of asv: written, summarised and read back by asv's own ``Results``.

Conventions: one file per set and variant, as if each were a commit. ``slower_2`` and ``slower_5`` hold the slowed
calls' figures, ``drift`` and ``memory`` the worsened ones; whoever injects a fault takes one cell from there.
"""

from __future__ import annotations

import hashlib
import math
import platform
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from validation.gate.cells import BASELINE, DELTAS, GROUPS, MODE, PLAIN, SIZE, Group, slowed
from validation.timing.tools import installed

MACHINE = "trial"
ENVIRONMENT = "virtualenv-py3.11-torch2.13.0"
VARIANTS = (PLAIN, *(slowed(delta) for delta in DELTAS), "drift", "memory")
METHODS = {
    "time_call": "seconds",
    "track_latency_ratio": "ratio to full_float32",
    "track_latency_to_anchor": "ratio to the anchor",
    "track_drift": "relative error to float64",
    "track_peak_bytes": "bytes",
    "track_stored_bytes": "bytes",
    "track_status": "1 passed, 2 raised",
}


def commit_of(number: int, variant: str) -> str:
    """Return the made-up commit of a set's variant."""
    return hashlib.sha1(f"{number}/{variant}".encode(), usedforsecurity=False).hexdigest()


def benchmark(group: Group, method: str) -> dict[str, Any]:
    """Return a benchmark as asv describes it."""
    fixes = [repr(fix) for fix in (BASELINE, *group.fixes)]
    return {
        "name": f"{MODE}.{group.case.replace('-', '_')}.{method}",
        "params": [fixes, [repr(SIZE)]],
        "param_names": ["fix", "size"],
        "version": "1",
        "unit": METHODS[method],
        "type": "time" if method.startswith("time") else "track",
    }


def written(line: dict[str, Any], number: int, folder: Path) -> dict[str, Any]:
    """Write one set's files and return asv's ``Results`` by variant, as loaded from them."""
    results = installed("asv.results").Results
    found = {}
    for variant in VARIANTS:
        one = results(
            {"machine": MACHINE, "python": platform.python_version(), "torch": "2.13.0"},
            {"torch": "2.13.0"},
            commit_of(number, variant),
            1_700_000_000_000 + number,
            "3.11",
            ENVIRONMENT,
            {},
        )
        for group in GROUPS:
            for method in METHODS:
                one.add_result(benchmark(group, method), _result(line, group, method, variant), record_samples=True)
        one.save(str(folder))
        found[variant] = results.load(str(folder / one._filename), machine_name=MACHINE)
    return found


def finish(folder: Path) -> SimpleNamespace:
    """Write ``machine.json`` and ``benchmarks.json``; return what stands for asv's configuration."""
    util = installed("asv.util")
    util.write_json(str(folder / MACHINE / "machine.json"), {"machine": MACHINE, "cpu": "as measured"}, 1)
    described = {(one := benchmark(group, method))["name"]: one for group in GROUPS for method in METHODS}
    util.write_json(str(folder / "benchmarks.json"), described, 2)
    return SimpleNamespace(results_dir=str(folder), benchmark_dir="benchmarks")


def _result(line: dict[str, Any], group: Group, method: str, variant: str) -> Any:
    """Return a benchmark's values over its fixes, as asv's runner returns them; NaN where none was measured."""
    values: list[float] = []
    samples: list[list[float] | None] = []
    for fix in (BASELINE, *group.fixes):
        found = _figure(line, f"{group.case}|{fix}", method, variant)
        kept = found if isinstance(found, list) else None
        samples.append(kept)
        values.append(math.nan if found is None else 0.0 if isinstance(found, list) else found)
    return installed("asv.runner").BenchmarkResult(
        result=values,
        samples=samples,
        number=[None if one is None else 1 for one in samples],
        errcode=0,
        stderr="",
        profile=None,
    )


def _figure(line: dict[str, Any], cell: str, method: str, variant: str) -> float | list[float] | None:
    """Return samples, a number, or None where this is not measured of the cell."""
    timed = f"{cell}|{variant if variant.startswith('slower') else PLAIN}"
    if cell.endswith(f"|{BASELINE}"):
        timed = f"{cell}|{PLAIN}"
    if method == "time_call":
        return [value for one in line["asv"] for value in one.get(timed, [])] or None
    if method.startswith("track_latency"):
        name = "to_baseline" if method == "track_latency_ratio" else "to_anchor"
        return [one[timed][name] for one in line["processes"] if name in one.get(timed, {})] or None
    exact = line["exact"][0].get(cell)
    if exact is None:
        return None
    if method == "track_status":
        return 1.0
    if method == "track_drift":
        return float(exact["drift_worse" if variant == "drift" else "drift"])
    if method == "track_peak_bytes":
        return float(exact["peak_bytes_worse" if variant == "memory" else "peak_bytes"])
    return float(exact["stored_bytes"])
