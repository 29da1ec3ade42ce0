"""Runs of several machines as tables: a row for each fix, a column for each machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from precision_eval.core.formatting import MISSING, ratio_text, status_text
from precision_eval.core.table import Strong, Table, make_table
from precision_eval.results.choose.comparing import leaders
from precision_eval.results.machines import Machine, side_by_side
from precision_eval.results.model import Group, order_of

NOTE = "Bold: the fastest fix on that machine, and what is not told apart from it."


def machine_tables(machines: Sequence[Machine]) -> list[Table]:
    """Return the machines, and a table for each thing that was measured alike: time to each machine's baseline."""
    facts = ("torch", "cores", "instructions")
    rows = [
        (machine.name, *(machine.facts.get(fact, MISSING) for fact in facts), str(machine.run)) for machine in machines
    ]
    together = side_by_side(group for machine in machines for group in machine.groups)
    return [replace(make_table(("machine", *facts, "run"), rows), notes=(NOTE,)), *map(_table, together)]


def _table(groups: dict[str, Group]) -> Table:
    first = next(iter(groups.values()))
    fastest = {name: {row.fix for row in leaders(group, "time")} for name, group in groups.items()}
    fixes = sorted({row.fix for group in groups.values() for row in group.fixes}, key=order_of)
    rows = [(fix, *(_cell(group, fix, fix in fastest[name]) for name, group in groups.items())) for fix in fixes]
    threads = f"{first.threads} thread{'' if first.threads == 1 else 's'}{first.pins.replace(',', ', ')}"
    title = f"{first.case} · {first.size} · {first.mode} · {threads}: time ÷ {first.baseline or 'nothing timed'}"
    columns = (
        f"{name}{', launched' * (group.clock == 'launched')}{', A/A check failed' * group.noise_floor_off}"
        for name, group in groups.items()
    )
    return Table(columns=("fix", *columns), rows=tuple(rows), title=title)


def _cell(group: Group, fix: str, is_fastest: bool) -> str:
    row = next((row for row in group.fixes if row.fix == fix), None)
    if row is None or (row.status == "passed" and row.time is None):
        return MISSING
    if row.time is None:
        return status_text(row.status)
    text = "1" if fix == group.baseline else ratio_text(row.time.value, row.time.low, row.time.high, decimals=2)
    return Strong(text) if is_fastest else text


def machines_to_dict(machines: Sequence[Machine]) -> dict[str, Any]:
    return {
        "machines": [{"name": machine.name, "run": str(machine.run), **machine.facts} for machine in machines],
        "groups": [
            {
                "machine": group.machine,
                **{name: getattr(group, name) for name in ("case", "size", "mode", "device", "threads", "pins")},
                "baseline": group.baseline,
                "fixes": group.fix_dicts(),
            }
            for machine in machines
            for group in machine.groups
        ],
    }
