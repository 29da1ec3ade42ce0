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

from precision_eval.cases.systems import Case, all_cases
from precision_eval.core.cells import Outcome
from precision_eval.core.errors import PrecisionEvalError
from precision_eval.core.workers import WorkerError, call_each
from precision_eval.measure.registry import run_cell
from precision_eval.run.plan import matching
from precision_eval.studies.tracking import FULL, Place, metric_by_id, outcomes_of, preload

pytest.importorskip("pytest_benchmark")

PAIRED_BUDGET_S = 1.5
EFFORT = replace(FULL, name="pytest", options=replace(FULL.options, budget_s=PAIRED_BUDGET_S, processes=1))


@dataclass(frozen=True)
class Measured:
    """Outcomes per fix of one place; `verdicts` holds the paired latency."""

    trace: dict[str, Outcome]
    drift: dict[str, Outcome]
    memory: dict[str, Outcome]
    verdicts: dict[str, Outcome]


RESULTS = pytest.StashKey[dict[Place, Measured]]()


def chosen_places(config: pytest.Config) -> list[Place]:
    """Return the places that the options name."""
    cases = {entry.id: entry for entry in all_cases()}
    size, mode = config.getoption("--size"), config.getoption("--mode")
    try:
        names = matching("case", config.getoption("--case") or ["attention-*"], list(cases))
        if size is not None:
            known = dict.fromkeys(one for name in names for one in cases[name].sizes)
            matching("size", [size], list(known))
    except PrecisionEvalError as error:
        raise pytest.UsageError(str(error)) from error
    return [Place(case=name, mode=mode, size=one) for name in names for one in _sizes(cases[name], size)]


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
def results(request: pytest.FixtureRequest) -> dict[Place, Measured]:
    """Everything that is measured beside the timing, before anything is timed here."""
    specs = [spec for item in request.session.items if (spec := getattr(item, "callspec", None)) is not None]
    places = dict.fromkeys(spec.params["place"] for spec in specs if "place" in spec.params)
    request.config.stash[RESULTS] = found = {}
    preload()
    with tempfile.TemporaryDirectory() as folder:
        for place in places:
            found[place] = _measured(place, Path(folder))
    return found


def _measured(place: Place, folder: Path) -> Measured:
    measures = place.entry.measures

    def of(measure: str | None) -> dict[str, Outcome]:
        return {} if measure is None else outcomes_of(place, measure, folder=folder, effort=EFFORT)

    return Measured(
        trace=of("trace"),
        drift=of(metric_by_id("drift").measure_of(measures)),
        memory=of("memory"),
        verdicts=_verdicts(place, of("trace"), folder),
    )


def _verdicts(place: Place, trace: dict[str, Outcome], folder: Path) -> dict[str, Outcome]:
    """Compare the fixes that run by the suite's own latency measure."""
    running = tuple(fix for fix, outcome in trace.items() if outcome.status == "passed")
    if not running:
        return {}
    cell = place.cell(running, "latency", EFFORT.options)
    (answer,) = call_each(run_cell, [(cell, folder)], timeout_s=EFFORT.limit_s)
    if isinstance(answer, WorkerError):
        return {fix: Outcome(fix=fix, role="fix", status=answer.status, reason=str(answer)) for fix in running}
    return {outcome.fix: outcome for outcome in answer.outcomes}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for place, measured in config.stash.get(RESULTS, {}).items():
        terminalreporter.section(f"{place.case} {place.size} {place.mode}: paired with full_float32")
        for line in summary_lines(measured):
            terminalreporter.write_line(line)


def summary_lines(measured: Measured) -> list[str]:
    """One line per fix: status, paired ratio with its interval and verdict, drift, memory; or why there is none."""
    lines = [f"{'fix':16} {'status':12} {'ratio':>7} {'95 % interval':>18} {'verdict':11} {'drift':>9} {'peak':>11}"]
    for fix, outcome in measured.trace.items():
        if outcome.status != "passed":
            lines.append(f"{fix:16} {outcome.status:12} {outcome.reason}")
            continue
        drift, peak = (
            _number(measured.drift, fix, "relative_error"),
            _number(measured.memory, fix, "allocated_peak_bytes"),
        )
        lines.append(
            f"{fix:16} {outcome.status:12} {_paired(fix, measured.verdicts.get(fix))} "
            f"{'-' if drift is None else format(drift, '.2e'):>9} {'-' if peak is None else format(peak, ',.0f'):>9} B"
        )
    return lines


def _paired(fix: str, outcome: Outcome | None) -> str:
    if outcome is None or outcome.data is None:
        return f"no ratio: {outcome.status}: {outcome.reason}" if outcome else "no ratio"
    data = outcome.data
    if fix == data["baseline"]:
        return f"{'baseline':>7} {'':18} {'':11}"
    interval = f"[{data['ratio_low']:.3f}, {data['ratio_high']:.3f}]"
    return f"{data['ratio']:7.3f} {interval:>18} {data['verdict']:11}"


def _number(outcomes: dict[str, Outcome], fix: str, name: str) -> float | None:
    outcome = outcomes.get(fix)
    return None if outcome is None or outcome.data is None else float(outcome.data[name])
