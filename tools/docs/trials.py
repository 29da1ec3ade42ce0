"""Trials whose truth is known: the gate, change points, and the answers of ``choose``.

Conventions: as :mod:`.figures`. Targets and whether they are met stand in the files (those of change points as
shares, judged here by the estimate); nothing is judged by an interval's better end. Rivals are given the same trials.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.docs.figures import (
    SHORT_SHA,
    as_written,
    measured_with,
    met_word,
    not_measured,
    percent,
    read_figures,
    share_text,
    span,
    table,
)

GATE_COMMAND = "python -m validation gate --size full --out results"
CHANGE_POINTS_COMMAND = "python -m validation versions --size full --out results"
CHOOSE_COMMAND = "python -m validation choose --size full --out results/choose"

OURS = "precision-eval versions"
"""The rule of change points that has targets."""

_NUMBERED = re.compile(r"\d+(?:\.\d+)?")
_COLUMNS = (
    (re.compile(r"^found, slower_(\d+) in one cell$"), r"+\1 % time found"),
    (re.compile(r"^found, (\w+) in one cell$"), r"more \1 found"),
    (re.compile(r"^false alarms of a (\w+), A/A$"), r"A/A: \1 fires"),
)

Figure = Mapping[str, Any]


def gate_markdown(path: Path) -> str:
    """Return the gate's rates and those of asv on the same pairs of sets."""
    stored = read_figures(path, GATE_COMMAND, keys=("conditions", "figures", "simulated", "spreads", "environment"))
    if stored is None:
        return not_measured(path, GATE_COMMAND)
    with as_written(path, GATE_COMMAND):
        conditions, figures = stored["conditions"], stored["figures"]
        judged = [one for one in (*figures, *stored["simulated"]) if "target" in one]
        command = (
            f"{GATE_COMMAND} --set sets={conditions['sets']} --set processes={conditions['processes']} "
            f"--set budget_s={conditions['budget_s']:g} --set pairs={conditions['pairs']}"
        )
        return "\n\n".join(
            [
                table(("figure", "target", "found", "met"), [_gate_row(one) for one in judged]),
                _same_pairs(figures),
                _gate_notes(conditions, figures, stored["spreads"]) + _tracked_note(stored.get("tracked", ())),
                measured_with(command, stored["environment"]),
            ]
        )


def _gate_row(one: Figure) -> tuple[str, ...]:
    name = f"{_column(one['what'])}, {one['rule']}" if "rule" in one else one["what"]
    count = round(one["rate"] * one["trials"])
    interval = f"[{100 * one['low']:.1f}, {100 * one['high']:.1f}]"
    found = f"{one.get('count', count):,} of {one['trials']:,}, {percent(one['rate'])} {interval}"
    return name, _target(one["target"]), found, met_word(one["met"])


def _target(text: str) -> str:
    """``≤ 0.01`` in per cent; any other text as it is."""
    sign, _, number = text.partition(" ")
    return f"{sign} {100 * float(number):g} %" if re.fullmatch(r"\d*\.?\d+", number) else text


def _column(what: str) -> str:
    for pattern, title in _COLUMNS:
        if pattern.match(what):
            return pattern.sub(title, what)
    return what


def _same_pairs(figures: Sequence[Figure]) -> str:
    """Return all rules' rates; rules that differ in one number share a row, ``3 / 5 / 10 processes``."""
    whats = list(dict.fromkeys(one["what"] for one in figures))
    rules: dict[str, dict[str, dict[str, float]]] = {}
    for one in figures:
        stem = _NUMBERED.sub("#", one["rule"])
        rules.setdefault(stem, {}).setdefault(one["rule"], {})[one["what"]] = one["rate"]
    rows = []
    for stem, members in rules.items():
        numbers = " / ".join(found[0] for rule in members if (found := _NUMBERED.findall(rule)))
        cells = []
        for what in whats:
            rates = [f"{100 * rates[what]:.3g}" if what in rates else "–" for rates in members.values()]
            cells.append(f"{' / '.join(rates)} %" if set(rates) != {"–"} else "–")
        rows.append((stem.replace("#", numbers), *cells))
    return table(("rule, same pairs", *map(_column, whats)), rows)


def _gate_notes(conditions: Figure, figures: Sequence[Figure], spreads: Mapping[str, Figure]) -> str:
    pairs = {one["independent_pairs"] for one in figures}
    scatter = [one["process_sd"] for one in spreads.values()]
    beyond = [one["sets_over_processes"] for one in spreads.values()]
    lines = [
        f"{conditions['sets']} sets of {conditions['processes']} processes, {conditions['pairs']} pairs of them; 95 % "
        f"intervals of {span(sorted(pairs), 'd')} trials, the pairs without a common set.",
        f"One process scatters by {span([100 * one for one in scatter], '.2g')} % (SD of a cell's ratio); sets of "
        f"equal code differ by {span(beyond, '.2g')} times the variance that this explains.",
    ]
    by_cell = [(rate, cell, one) for one in figures if "target" in one for cell, rate in one.get("by_cell", {}).items()]
    if by_cell:
        rate, cell, one = min(by_cell, key=lambda found: found[0])
        lines.append(f"Least of a single cell: {percent(rate)} ({_column(one['what'])}, {cell}).")
    return " ".join(lines)


def _tracked_note(cells: Sequence[Figure]) -> str:
    """Say what the cells that asv tracks would need, whose calls are not those of the trials; empty without any."""
    if not cells:
        return ""
    spread, needed = [100 * one["spread"] for one in cells], [one["needed_processes"] for one in cells]
    middle = sorted(needed)[len(needed) // 2]
    return (
        f" The {len(cells)} cells that asv tracks scatter by {span(spread, '.2g')} % and would need "
        f"{span(needed, 'd')} processes a side for the smallest of these slowdowns, {middle} at the median."
    )


def change_points_markdown(path: Path) -> str:
    """Return recall and false reports of the change points, and of other rules on the same tables."""
    stored = read_figures(path, CHANGE_POINTS_COMMAND, keys=("settings", "targets", "conditions", "environment"))
    if stored is None:
        return not_measured(path, CHANGE_POINTS_COMMAND)
    with as_written(path, CHANGE_POINTS_COMMAND):
        settings, conditions = stored["settings"], stored["conditions"]
        command = (
            f"{CHANGE_POINTS_COMMAND} --set tables={settings['tables']} --set noise_floor_tables="
            f"{settings['noise_floor_tables']} --set seed={settings['seed']}"
        )
        found = [
            _recall_table(conditions, stored["targets"]),
            "Intervals take each step and each report for itself; those of a table share their noise.",
            _other_rules(conditions),
            _sessions_note(stored.get("sessions")),
            measured_with(command, stored["environment"]) + _commits_note(conditions),
        ]
        return "\n\n".join(part for part in found if part)


def _commits_note(conditions: Mapping[str, Figure]) -> str:
    """Say of which commits the conditions are, where they are of several."""
    rows: dict[str, int] = {}
    for one in conditions.values():
        commit = str(one.get("commit") or "an unknown one")
        rows[commit] = rows.get(commit, 0) + 1
    if len(rows) < 2:
        return ""
    return f" Rows are of several commits: {', '.join(f'{count} of {commit}' for commit, count in rows.items())}."


def _recall_table(conditions: Mapping[str, Figure], targets: Mapping[str, float]) -> str:
    head = (
        "tables",
        f"steps found at their version, ≥ {100 * targets['recall']:g} %",
        "met",
        "of the smallest",
        f"false among reports, ≤ {100 * targets['false']:g} %",
        "met",
        "false and not beside a step",
        "series without a step, reported",
        "tables without any step, reported",
    )
    rows = []
    for name, condition in conditions.items():
        ours = condition["rules"][OURS]
        smallest = min(ours["recall_by_size"], key=float)
        wrong = ours["false_among_reports"]
        rows.append(
            (
                name,
                share_text(*ours["recall"]),
                met_word(ours["recall"][0] >= targets["recall"] * ours["recall"][1]),
                _plain(ours["recall_by_size"][smallest]),
                share_text(*wrong),
                met_word(wrong[0] <= targets["false"] * wrong[1]),
                _plain(ours["far_among_reports"]),
                _plain(ours["series_without_step_flagged"]),
                _plain(ours["tables_without_steps_flagged"]),
            )
        )
    return table(head, rows)


def _plain(found: Sequence[int]) -> str:
    hits, trials = found
    return f"{hits:,} of {trials:,}, {percent(hits / trials)}" if trials else "–"


def _other_rules(conditions: Mapping[str, Figure]) -> str:
    """Return what other rules find on the same tables: shares of steps found, and of false ones among reports."""
    names = list(dict.fromkeys(rule for one in conditions.values() for rule in one["rules"] if rule != OURS))

    def cell(found: Figure | None) -> str:
        if found is None:
            return "–"
        (hits, trials), (wrong, reports) = found["recall"], found["false_among_reports"]
        return f"{percent(hits / trials)}; {percent(wrong / reports) if reports else 'no report'}"

    rows = [(name, *(cell(one["rules"].get(rule)) for rule in names)) for name, one in conditions.items()]
    return table(("the same tables: found; false among reports", *names), rows)


def _sessions_note(sessions: Figure | None) -> str:
    """Say where the offsets between sessions come from, and what was reported of the sessions themselves."""
    if not sessions:
        return "Sessions of equal code were not measured, so the conditions that need them are missing."
    parts = [
        f"Tables of sessions are {sessions['count']} sessions of equal code in random order, so no two tables are "
        f"independent ({', '.join(sessions['cases'])}; {_machine_of(sessions['source'])})."
    ]
    for metric, found in sessions["metrics"].items():
        judged = found["as_measured"]
        parts.append(
            f"{metric}: beyond what processes explain, sessions scatter by "
            f"{span([100 * one for one in found['session_sd'].values()], '.2g')} % (SD), a process by "
            f"{span([100 * one for one in found['process_sd'].values()], '.2g')} %; two sessions differ by up to "
            f"{percent(found['largest_difference'])}. The sessions as measured, in order: with the margin of "
            f"{percent(found['margin'], digits=0)} a change is reported in {_plain(judged['with'])} series, without "
            f"it in {_plain(judged['without'])}."
        )
    return " ".join(parts)


def _machine_of(source: Figure) -> str:
    return f"{source['cpu']}, torch {source['torch']}, commit {source['commit'] or 'unknown'}"


def choose_markdown(path: Path) -> str:
    """Return how often re-runs give ``choose`` the same answer."""
    stored = read_figures(path, CHOOSE_COMMAND, keys=("campaign", "figures", "cases"))
    if stored is None:
        return not_measured(path, CHOOSE_COMMAND)
    with as_written(path, CHOOSE_COMMAND):
        environment, budget, processes = stored["campaign"].split("/")
        rows = [(one["name"], one["target"] or "–", one["found"], met_word(one["met"])) for one in stored["figures"]]
        cases = dict.fromkeys(f"{one['case']}/{one['size']}" for one in stored["cases"])
        answers = [len(one["answers"]) for one in stored["cases"]]
        given = f"--set processes={processes.removesuffix('p')} --set budget_s={budget.removesuffix('s')}"
        command = f"{CHOOSE_COMMAND} {given}"
        return "\n\n".join(
            [
                table(("figure", "target", "found [95 %]", "met"), rows),
                f"{len(stored['cases'])} questions, each asked to {span(answers, 'd')} re-runs: {', '.join(cases)}.",
                measured_with(command, _environment_beside(path, environment)),
            ]
        )


def _environment_beside(path: Path, sha: str) -> dict[str, Any] | None:
    """Return the environment with this hash from the folder of a file, or None."""
    for one in sorted(path.parent.glob("environment*.json")):
        content = one.read_bytes()
        if hashlib.sha256(content).hexdigest()[:SHORT_SHA] == sha:
            return dict(json.loads(content))
    return None
