"""What a self-test of the machine says, as a table, as notes, and as one line of a run's environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precision_eval.core.environment import SELF_TEST_FILE, read_self_test
from precision_eval.core.errors import RecordError
from precision_eval.core.formatting import counted, duration_text, percent
from precision_eval.core.table import Table, make_table
from precision_eval.results.reading import Run

QUIET_LOAD = 0.25
"""Load average per core from which a machine is called loaded."""


def self_test_table(content: Mapping[str, Any]) -> Table:
    """Return what a self-test found, a row per kind of call."""
    budgets = list(dict.fromkeys(budget for call in content["calls"].values() for budget in call["found"]))
    rows = [
        (
            call["title"],
            duration_text(call["call_s"]),
            f"{call['alarms']} of {call['pieces']}",
            percent(call["covered"] / call["pieces"]),
            *(f"+{percent(call['found'][budget])}" for budget in budgets),
        )
        for call in content["calls"].values()
    ]
    columns = ("call", "lasts", "A/A apart", "covers 1", *(f"{budget} s find" for budget in budgets))
    return make_table(columns, rows, title="Self-test", align="lr" + "r" * (len(columns) - 2))


def self_test_notes(content: Mapping[str, Any]) -> list[str]:
    """Say where and when a self-test was made, and how each of its figures is worked out."""
    machine, load = content["machine"], content["load_average"]
    pieces = [call["piece_s"] for call in content["calls"].values()]
    busy = "loaded" if load > QUIET_LOAD * machine["cores"] else "quiet"
    return [
        f"{machine['cpu']}, {counted(machine['cores'], 'core')}, torch {machine['torch']}; {content['made']}, "
        f"{content['seconds']:.0f} s; {busy}: load average {load:g}",
        f"Equal calls told apart, and 95 % intervals that cover 1, are measured, on pieces of {min(pieces):.2g} to "
        f"{max(pieces):.2g} s. The slowdown that 95 % of measurements of 1, 2 or 10 s find is predicted from the "
        "scatter of the rounds (1/√time) and the margin of 0.2 %.",
        "One process: what differs from process to process is not in it.",
    ]


def self_test_line(run: Run) -> str:
    """Say in one line what the self-test stored with a run found; empty where there is none."""
    path = run.directory / SELF_TEST_FILE
    if not path.exists():
        return ""
    try:
        content = read_self_test(path)
    except RecordError as error:
        return f"self-test: {error}"
    calls = content["calls"].values()
    alarms, covered, pieces = (sum(call[name] for call in calls) for name in ("alarms", "covered", "pieces"))
    found = ", ".join(
        f"+{percent(call['found']['2'])} ({name})" for name, call in content["calls"].items() if "2" in call["found"]
    )
    return (
        f"self-test of {content['made']}, load average {content['load_average']:g}: equal calls told apart in {alarms} "
        f"of {pieces} pieces and coverage {percent(covered / pieces if pieces else 0.0)} (measured); 2 s find {found} "
        "(predicted)"
    )
