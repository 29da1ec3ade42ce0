"""The gate and asv, asked about a pair of sets that asv's own ``Results`` have written, summarised and read back.

One file per set and variant, as if each were a commit: ``slower_2`` and ``slower_5`` hold the slowed calls' figures,
``drift`` and ``memory`` the worsened ones. A rule is asked about a base, a head and a *fault*: None, or a cell and the
variant whose figures the head has there. It answers with the cells that it calls worse, as (case, fix); the gate fires
where there is any. asv answers through ``asv.commands.compare.Compare.print_table``, which prints what ``asv compare``
prints and whose answer is the exit code of ``asv continuous``; what it marks with ``+`` or ``!`` is worse. ``asv
compare`` after a plain ``asv run`` has no samples to test, ``asv continuous`` records them.
"""

from __future__ import annotations

import hashlib
import io
import math
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from precision_eval.results.asv import read_results
from precision_eval.results.gate import Margins, Side, compare_sides
from precision_eval.results.gate.sides import side_of_sets
from validation.gate.cells import BASELINE, DELTAS, GROUPS, MODE, PLAIN, SIZE, Group, slowed
from validation.latency.rivals import installed

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
        number=[None if sample is None else 1 for sample in samples],
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


# ---- asking

Cell = tuple[str, str]
Fault = tuple[Cell, str] | None
FACTORS = (1.1, 1.05, 1.02, 1.01)
"""1.1 is the default of ``asv compare`` and ``asv continuous``."""


@dataclass(frozen=True)
class Sets:
    """All sets, as the gate reads asv's files and as asv does."""

    sides: Mapping[tuple[int, str], Side]
    results: Mapping[tuple[int, str], Any]
    conf: SimpleNamespace


def read_sets(lines: Sequence[Mapping[str, Any]], folder: Path) -> Sets:
    """Write all sets as asv's files, and read those back."""
    results = {}
    for number, line in enumerate(lines):
        results |= {(number, variant): one for variant, one in written(dict(line), number, folder).items()}
    conf = finish(folder)
    by_commit = {result.commit: result for result in read_results(folder)}
    keys = [(number, variant) for number in range(len(lines)) for variant in VARIANTS]
    sides = {key: side_of_sets(commit_of(*key), [by_commit[commit_of(*key)]]) for key in keys}
    return Sets(sides, results, conf)


def gate_says(
    sets: Sets, base: int, head: int, fault: Fault, *, processes: int, margins: Margins | None = None
) -> set[Cell]:
    """Ask the gate, giving it the first so many processes of each side."""
    ours, theirs = (sets.sides[number, PLAIN] for number in (base, head))
    figures = dict(theirs.figures)
    if fault is not None:
        (case, fix), variant = fault
        worse = sets.sides[head, variant].figures
        figures |= {key: one for key, one in worse.items() if (key[0].case, key[0].fix) == (case, fix)}
    found = compare_sides(
        _first(ours, ours.figures, processes), _first(theirs, figures, processes), margins=margins or Margins()
    )
    return {(one.place.case, one.place.fix) for one in found.of("regression")}


def _first(side: Side, figures: Mapping[Any, Any], processes: int) -> Side:
    kept = {
        key: replace(one, samples=one.samples[:processes]) if key[1].startswith("latency") else one
        for key, one in figures.items()
    }
    return replace(side, figures=kept)


@dataclass(frozen=True, kw_only=True)
class AsvRule:
    """A way to use asv."""

    name: str
    method: str
    samples: bool


ASV_RULES: tuple[AsvRule, ...] = (
    AsvRule(name="asv compare, its times", method="time_call", samples=False),
    AsvRule(name="asv continuous, its times", method="time_call", samples=True),
    AsvRule(name="asv continuous, our paired ratios", method="track_latency_ratio", samples=True),
    AsvRule(name="asv compare, drift", method="track_drift", samples=False),
    AsvRule(name="asv compare, peak bytes", method="track_peak_bytes", samples=False),
)

_ROW = re.compile(r"^\|\s*([+!])\s*\|.*\|\s*\w+\.(\w+)\.\w+\('(\w+)', '\w+'\)\s*\|\s*$")


def asv_says(sets: Sets, base: int, head: int, fault: Fault, *, rule: AsvRule, factor: float) -> set[Cell]:
    """Ask asv, by the function that both its commands end in."""
    out = io.StringIO()
    with redirect_stdout(out):
        worsened, _ = installed("asv.commands.compare").Compare.print_table(
            sets.conf,
            commit_of(base, PLAIN),
            commit_of(head, PLAIN),
            factor,
            split=False,
            resultset_1=_rows(sets, base, None, rule),
            resultset_2=_rows(sets, head, fault, rule),
            machine=MACHINE,
            only_changed=True,
        )
    flagged = {
        (match.group(2).replace("_", "-"), match.group(3))
        for line in out.getvalue().splitlines()
        if (match := _ROW.match(line))
    }
    if bool(flagged) != worsened:
        raise AssertionError(f"asv says worsened = {worsened}, its table:\n{out.getvalue()}")
    return flagged


def _rows(sets: Sets, number: int, fault: Fault, rule: AsvRule) -> Iterator[tuple[Any, ...]]:
    """Yield a set's benchmarks as ``asv compare`` takes them from a file, with one cell's figures exchanged."""
    plain = sets.results[number, PLAIN]
    for key in plain.get_all_result_keys():
        if not key.endswith(f".{rule.method}"):
            continue
        params = plain.get_result_params(key)
        columns = [list(column) for column in _columns(plain, key, params)]
        if fault is not None and key.split(".")[1].replace("_", "-") == fault[0][0]:
            index = params[0].index(repr(fault[0][1]))
            worse = _columns(sets.results[number, fault[1]], key, params)
            for column, other in zip(columns, worse, strict=True):
                column[index] = other[index]
        values, stats, samples = columns
        kept = samples if rule.samples else [None] * len(values)
        yield key, params, values, stats, kept, plain.benchmark_version.get(key), MACHINE, ENVIRONMENT


def _columns(one: Any, key: str, params: Any) -> tuple[list[Any], list[Any], list[Any]]:
    return (
        one.get_result_value(key, params),
        one.get_result_stats(key, params),
        one.get_result_samples(key, params),
    )
