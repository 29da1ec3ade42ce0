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
from typing import Any, NamedTuple

from precision_eval.gate import Margins, Side, compare_sides
from precision_eval.gate.sides import side_of_sets
from precision_eval.results.asv import read_results
from validation.gate.measuring import BASELINE, GROUPS, MODE, PLAIN, SIZE, SLOWER
from validation.latency.rivals import installed

MACHINE = "trial"
ENVIRONMENT = "virtualenv-py3.11-torch2.13.0"
VARIANTS = (PLAIN, *SLOWER, "drift", "memory")
UNITS = {
    "time_call": "seconds",
    "track_latency_ratio": "ratio to full_float32",
    "track_latency_to_anchor": "ratio to the anchor",
    "track_drift": "relative error to float64",
    "track_peak_bytes": "bytes",
    "track_stored_bytes": "bytes",
    "track_status": "1 passed, 2 raised",
}
"""Benchmarks as asv follows them, with their units."""
_PAIRED = {"track_latency_ratio": "to_baseline", "track_latency_to_anchor": "to_anchor"}


def commit_of(number: int, variant: str) -> str:
    """Return the made-up commit of a set's variant."""
    return hashlib.sha1(f"{number}/{variant}".encode(), usedforsecurity=False).hexdigest()


def _benchmarks() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield case, method, and the benchmark as asv describes it."""
    for case, fixes in GROUPS.items():
        for method, unit in UNITS.items():
            yield case, method, {
                "name": f"{MODE}.{case.replace('-', '_')}.{method}",
                "params": [[repr(fix) for fix in (BASELINE, *fixes)], [repr(SIZE)]],
                "param_names": ["fix", "size"],
                "version": "1",
                "unit": unit,
                "type": "time" if method.startswith("time") else "track",
            }  # fmt: skip


def _written(line: Mapping[str, Any], number: int, variant: str, folder: Path) -> Any:
    """Write one file of a set and return asv's ``Results`` as loaded from it."""
    results = installed("asv.results").Results
    params = {"machine": MACHINE, "python": platform.python_version(), "torch": "2.13.0"}
    date_ms = 1_700_000_000_000 + number
    written = results(params, {"torch": "2.13.0"}, commit_of(number, variant), date_ms, "3.11", ENVIRONMENT, {})
    for case, method, described in _benchmarks():
        written.add_result(described, _result(line, case, method, variant), record_samples=True)
    written.save(str(folder))
    return results.load(str(folder / written._filename), machine_name=MACHINE)


def _result(line: Mapping[str, Any], case: str, method: str, variant: str) -> Any:
    """Return a benchmark's values over its fixes, as asv's runner returns them; NaN where none was measured."""
    figures = [_measured(line, f"{case}|{fix}", method, variant) for fix in (BASELINE, *GROUPS[case])]
    samples = [figure if isinstance(figure, list) else None for figure in figures]
    return installed("asv.runner").BenchmarkResult(
        result=[math.nan if one is None else 0.0 if isinstance(one, list) else float(one) for one in figures],
        samples=samples,
        number=[None if sample is None else 1 for sample in samples],
        errcode=0,
        stderr="",
        profile=None,
    )


def _measured(line: Mapping[str, Any], cell: str, method: str, variant: str) -> float | list[float] | None:
    """Return samples, a number, or None where this is not measured of the cell."""
    timed = f"{cell}|{variant if variant in SLOWER and not cell.endswith(BASELINE) else PLAIN}"
    if method == "time_call":
        return [value for times in line["asv"] for value in times.get(timed, [])] or None
    if name := _PAIRED.get(method):
        return [ratios[timed][name] for ratios in line["processes"] if name in ratios.get(timed, {})] or None
    exact = line["exact"][0].get(cell)
    if exact is None or method == "track_status":
        return exact and 1.0
    worse = (method, variant) in (("track_drift", "drift"), ("track_peak_bytes", "memory"))
    figure: float = exact[method.removeprefix("track_") + ("_worse" if worse else "")]
    return figure


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
    util, keys = installed("asv.util"), [(number, variant) for number in range(len(lines)) for variant in VARIANTS]
    results = {(number, variant): _written(lines[number], number, variant, folder) for number, variant in keys}
    util.write_json(str(folder / MACHINE / "machine.json"), {"machine": MACHINE, "cpu": "as measured"}, 1)
    described = {benchmark["name"]: benchmark for _, _, benchmark in _benchmarks()}
    util.write_json(str(folder / "benchmarks.json"), described, 2)
    by_commit = {result.commit: result for result in read_results(folder)}
    sides = {key: side_of_sets(commit_of(*key), [by_commit[commit_of(*key)]]) for key in keys}
    return Sets(sides, results, SimpleNamespace(results_dir=str(folder), benchmark_dir="benchmarks"))


def gate_says(
    sets: Sets, base: int, head: int, fault: Fault, *, processes: int, margins: Margins | None = None
) -> set[Cell]:
    """Ask the gate, giving it the first so many processes of each side."""
    ours, theirs = (sets.sides[number, PLAIN] for number in (base, head))
    figures = dict(theirs.figures)
    if fault is not None:
        cell, variant = fault
        worse = sets.sides[head, variant].figures
        figures |= {key: figure for key, figure in worse.items() if (key[0].case, key[0].fix) == cell}
    verdicts = compare_sides(
        _first(ours, ours.figures, processes), _first(theirs, figures, processes), margins=margins or Margins()
    )
    return {(one.place.case, one.place.fix) for one in verdicts.of("regression")}


def _first(side: Side, figures: Mapping[Any, Any], processes: int) -> Side:
    kept = {
        key: replace(figure, samples=figure.samples[:processes]) if key[1].startswith("latency") else figure
        for key, figure in figures.items()
    }
    return replace(side, figures=kept)


class AsvRule(NamedTuple):
    """A way to use asv."""

    name: str
    method: str
    samples: bool


ASV_RULES = (
    AsvRule("asv compare, its times", "time_call", samples=False),
    AsvRule("asv continuous, its times", "time_call", samples=True),
    AsvRule("asv continuous, our paired ratios", "track_latency_ratio", samples=True),
    AsvRule("asv compare, drift", "track_drift", samples=False),
    AsvRule("asv compare, peak bytes", "track_peak_bytes", samples=False),
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
    rows = filter(None, map(_ROW.match, out.getvalue().splitlines()))
    flagged = {(row[2].replace("_", "-"), row[3]) for row in rows}
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
        columns = _columns(plain, key, params)
        if fault is not None and key.split(".")[1].replace("_", "-") == fault[0][0]:
            index = params[0].index(repr(fault[0][1]))
            for column, worse in zip(columns, _columns(sets.results[number, fault[1]], key, params), strict=True):
                column[index] = worse[index]
        values, stats, samples = columns
        kept = samples if rule.samples else [None] * len(values)
        yield key, params, values, stats, kept, plain.benchmark_version.get(key), MACHINE, ENVIRONMENT


def _columns(result: Any, key: str, params: Any) -> list[list[Any]]:
    readers = (result.get_result_value, result.get_result_stats, result.get_result_samples)
    return [list(reader(key, params)) for reader in readers]
