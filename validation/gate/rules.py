"""The gate and asv, asked about a pair of sets.

Conventions: a rule is asked about a base, a head and a *fault*: None, or a cell and the variant whose figures the head
has there. It answers with the cells that it calls worse, as (case, fix); the gate fires where there is any.
asv answers through ``asv.commands.compare.Compare.print_table``, which prints what ``asv compare`` prints and whose
answer is the exit code of ``asv continuous``; what it marks with ``+`` or ``!`` is worse. ``asv compare`` after a plain
``asv run`` has no samples to test, ``asv continuous`` records them.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from precision_eval.results.asv import read_results
from precision_eval.results.gate import Margins, Side, compare_sides
from precision_eval.results.gate.asv_results import side_of_sets
from validation.gate.asv_files import ENVIRONMENT, MACHINE, VARIANTS, commit_of, finish, written
from validation.gate.cells import PLAIN
from validation.timing.tools import installed

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
    by_commit = {one.commit: one for one in read_results(folder)}
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
