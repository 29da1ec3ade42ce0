"""The command to run next: what would decide what is undecided, else how to choose under limits of one's own."""

from __future__ import annotations

import math
from dataclasses import replace

from precision_eval.core.formatting import command_line
from precision_eval.results.model import SAME_TIME, Group, Row
from precision_eval.results.reading import Run

LONGEST_BUDGET_S = 120.0
"""Seconds of timing per group above which no command is offered for what is undecided."""

NEW = "runs/again"
"""Folder of commands that measure anew; in a run's own folder they would only resume."""


def next_command(run: Run) -> str:
    """Return the command, most useful first."""
    groups = [replace(group, run=NEW) for group in run.sections if group.curing]
    for group in groups:
        if group.noise_floor_off:
            return f"{group.command()}  (again, as the A/A check failed)"
    for group in groups:
        budgets = [budget for row in group.curing if (budget := budget_to_decide(group, row))]
        if budgets and max(budgets) <= LONGEST_BUDGET_S:
            return f"{group.command('latency')} --set budget={max(budgets):g}  (decides an undecided time)"
    for group in groups:
        if any(row.fresh_memory for row in group.curing):
            return f"{group.command('latency')} --set processes=5  (takes fresh memory into the interval)"
    for group in groups:
        needed = max((row.sound.needed for row in group.curing if row.sound and row.sound.metrics), default=0)
        if any(row.sound and row.sound.verdict == "undecided" for row in group.curing) and needed:
            return f"{group.command('streams,sound')} --set streams={needed}  (decides an undecided sound)"
    return f"{command_line('choose', run.directory)} --max-drift 1e-3  (the fix to take within a limit of yours)"


def budget_to_decide(group: Group, row: Row) -> float | None:
    """Return the seconds of timing per group after which an undecided time would probably be called.

    The detectable effect shrinks with the square root of the time measured: either the effect seen is called, or, as
    the record estimates itself, everything beyond twice the margin. None where nothing is undecided, where the baseline
    is told apart from itself, where calls take fresh memory, or where neither follows from the record.
    """
    latency = row.latency
    if group.noise_floor_off or row.fresh_memory or group.verdict_of(row) != "undecided" or not row.time or not latency:
        return None
    spent_s = latency.elapsed_s or row.records["latency"].options.get("budget_s")
    effect, settling_s = latency.minimum_detectable_effect, latency.settling_s
    seen = abs(math.log(row.time.value))
    needed = [] if settling_s is None else [settling_s]
    if effect is not None and spent_s is not None and math.log1p(SAME_TIME) < seen < math.log1p(effect):
        needed.append(spent_s * (math.log1p(effect) / seen) ** 2)
    return float(math.ceil(min(needed))) if needed else None
