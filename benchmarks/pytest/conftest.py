"""pytest-benchmark over the registries: what is chosen, what is measured beside the timing, and the summary.

Before the first test, the suite's own measures run for every chosen case: trace, drift and memory of each fix in
a process of its own, then all fixes side by side, paired. They fork from this process, which must not have run torch
by then. pytest-benchmark's own table compares times of separate stretches; the paired verdict in the summary is the one
to decide by.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from precision_eval.cases.systems import CASES, Case
from precision_eval.core.errors import PrecisionEvalError
from precision_eval.core.formatting import MISSING, memory_text, ratio_text, scientific, status_text
from precision_eval.core.records import Record
from precision_eval.core.table import Table, make_table, to_text
from precision_eval.history.outcomes import outcomes_of, preload
from precision_eval.history.tracking import FULL, TrackedCell, metric_by_id
from precision_eval.measure.registry import MEASURES
from precision_eval.run.plan import matching

pytest.importorskip("pytest_benchmark")

PAIRED_BUDGET_S = 1.5
MEASURES_OF_FIXES = tuple(replace(measure, pseudo_fixes=()) for measure in MEASURES)
EFFORT = replace(FULL, name="pytest", options=replace(FULL.options, budget_s=PAIRED_BUDGET_S, processes=1))


@dataclass(frozen=True)
class Measured:
    """Outcomes per fix of one place; `verdicts` holds the paired latency."""

    trace: dict[str, Record]
    drift: dict[str, Record]
    memory: dict[str, Record]
    verdicts: dict[str, Record]


RESULTS = pytest.StashKey[dict[TrackedCell, Measured]]()


def chosen_places(config: pytest.Config) -> list[TrackedCell]:
    """Return the places that the options name."""
    cases = {entry.id: entry for entry in CASES}
    size, mode = config.getoption("--size"), config.getoption("--mode")
    try:
        names = matching("case", config.getoption("--case") or ["attention-*"], list(cases))
        if size is not None:
            known = dict.fromkeys(one for name in names for one in cases[name].sizes)
            matching("size", [size], list(known))
    except PrecisionEvalError as error:
        raise pytest.UsageError(str(error)) from error
    return [TrackedCell(case=name, mode=mode, size=one) for name in names for one in _sizes(cases[name], size)]


def _sizes(case: Case, asked: str | None) -> tuple[str, ...]:
    if asked is None:
        return case.default_sizes
    return tuple(size for size in case.sizes if size == asked)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if {"place", "label"} <= set(metafunc.fixturenames):
        cases = [
            pytest.param(place, fix.label, id=f"{place.case}-{place.size}-{fix.label}-{place.mode}")
            for place in chosen_places(metafunc.config)
            for fix in place.fixes(EFFORT)
        ]
        metafunc.parametrize(("place", "label"), cases)


@pytest.fixture(scope="session")
def results(request: pytest.FixtureRequest) -> dict[TrackedCell, Measured]:
    """Everything that is measured beside the timing, before anything is timed here."""
    specs = [spec for item in request.session.items if (spec := getattr(item, "callspec", None)) is not None]
    places = dict.fromkeys(spec.params["place"] for spec in specs if "place" in spec.params)
    request.config.stash[RESULTS] = found = {}
    preload()
    with tempfile.TemporaryDirectory() as folder:
        for place in places:
            found[place] = _measured(place, Path(folder))
    return found


def _measured(place: TrackedCell, folder: Path) -> Measured:
    measures = place.entry.measures

    def of(measure: str | None) -> dict[str, Record]:
        if measure is None:
            return {}
        return outcomes_of(place, measure, folder=folder, effort=EFFORT, measures=MEASURES_OF_FIXES)

    return Measured(
        trace=of("trace"),
        drift=of(metric_by_id("drift").measure_of(measures)),
        memory=of("memory"),
        verdicts=of("latency"),
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for place, measured in config.stash.get(RESULTS, {}).items():
        terminalreporter.section(f"{place.case} {place.size} {place.mode}: paired with full_float32")
        terminalreporter.write_line(to_text(summary_table(measured)))


def summary_table(measured: Measured) -> Table:
    """One row per fix: status, paired ratio with its interval and verdict, drift, memory; or why there is none."""
    rows = []
    for fix, trace in measured.trace.items():
        drift = figure_of(measured.drift.get(fix), "relative_error")
        peak_bytes = figure_of(measured.memory.get(fix), "allocated_peak_bytes")
        cells = (*_paired(fix, measured.verdicts.get(fix)), scientific(drift), memory_text(peak_bytes))
        rows.append((fix, trace.status, *cells, trace.reason or ""))
    columns = ("fix", "status", "ratio [95 %]", "verdict", "drift", "peak", "reason")
    return make_table(columns, rows, align="llrlrrl")


def figure_of(record: Record | None, name: str) -> float | None:
    return None if record is None or record.data is None else float(record.data[name])


def _paired(fix: str, record: Record | None) -> tuple[str, str]:
    if record is None or record.data is None:
        return MISSING, MISSING if record is None else status_text(record.status)
    data = record.data
    if fix == data["baseline"]:
        return "1", "baseline"
    return ratio_text(data["ratio"], data["ratio_low"], data["ratio_high"]), data["verdict"]
