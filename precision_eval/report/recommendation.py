"""One recommendation per section: what each policy takes here, by the engine that also answers ``choose``.

A policy whose measures are missing has no part in it. Sound comes in as :mod:`precision_eval.report.findings_sound`
weighs it.
"""

from __future__ import annotations

from precision_eval.core.formatting import join
from precision_eval.report.choice_text import AIMS, LESS, facts
from precision_eval.report.findings_sound import measured_length, silent_controls, worse_by_sound, yardsticks_of
from precision_eval.results.choose import POLICIES, Choice, MissingMeasureError, choose_from
from precision_eval.results.model import Group
from precision_eval.results.reading import Run


def recommendation(run: Run, section: Group) -> str:
    """Return what to take on this machine, by policy, with the numbers behind it."""
    if len(section.curing) < 2:
        return ""
    if section.fault:
        return f"No fix is recommended: {section.fault}."
    choices = choices_of(run, section)
    if not choices:
        return ""
    by_fix: dict[str, list[Choice]] = {}
    for choice in choices:
        by_fix.setdefault(str(choice.fix), []).append(choice)
    parts = [_part(fix, same) for fix, same in by_fix.items()]
    where = section.title.rpartition(" · ")[2]
    return f"On this machine ({where}): {'; '.join(parts)}. {_by_sound(run, section)}".rstrip()


def choices_of(run: Run, section: Group) -> tuple[Choice, ...]:
    """Return the choice of each policy in a section, without limits; those that lack a measure are left out."""
    if section.fault or not section.fixes:
        return ()
    found = []
    for policy in POLICIES:
        try:
            found.append(choose_from(section, policy=policy))
        except MissingMeasureError:
            continue
    return tuple(choice for choice in found if choice.fix is not None)


def _part(fix: str, choices: list[Choice]) -> str:
    """Say what one or more policies take, and what ties there."""
    names = join([choice.policy.replace("balanced", "balance") for choice in choices])
    ties = [f"; {_tie(choice)}" for choice in choices if len(choice.tied) > 1]
    return f"for {names} take {fix} ({facts(choices[0].group, fix)}{''.join(ties)})"


def _tie(choice: Choice) -> str:
    called = "" if choice.tie_break_called or choice.tie_break == "order" else ", by point estimate"
    less = LESS[choice.tie_break]
    return f"in {AIMS[choice.policy]} a tie with {join(choice.tied[1:])}, broken by {less}{called}"


def _by_sound(run: Run, section: Group) -> str:
    """Say whether sound takes part in the choice; empty where there is none to hear."""
    if not any(row.data("audio") for row in section.rows):
        return ""
    yardsticks = yardsticks_of(run, section)
    if not yardsticks or any(y.noise_floor is None or not y.controls for y in yardsticks):
        return "Sound was not measured beside noise floor and controls, so it takes no part in this."
    length = measured_length(section)
    over = f" over {length}" if length else ""
    if silent_controls(yardsticks):
        return f"Sound takes no part in this: a control that must degrade it does not{over}."
    against = worse_by_sound(yardsticks)
    if against:
        return f"Sound speaks against {join(against)}: worse than the reference by more than chance{over}."
    return f"Sound does not separate the fixes{over}, so drift, speed and memory decide."
