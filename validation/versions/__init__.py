"""Change points over torch versions: how often a step is found at its version, and how often one is not there.

Tables of series are made of noise (real, normal, heavy-tailed, or whole sessions of equal code) with steps injected;
this suite's rule, fixed factors and asv's own step detection are asked about the same tables. Noise of processes is
taken from a run's records, that of sessions from ``OUT/sessions.jsonl`` or the file that ``sessions`` names
(``python -m validation sessions`` makes it); conditions of sessions are left out where there are none.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from precision_eval.core.environment import git_commit
from precision_eval.history.changes import SESSION_MARGIN
from validation.frame import Data, Experiment, Figure, Options, Trial
from validation.report import judged_share, meets, plain_share, share_text, span
from validation.versions.rivals import NO_MARGIN, OURS, RULES, Found, Table, session_rules
from validation.versions.sessions import METRICS, Sessions, read_sessions
from validation.versions.tables import (
    CONDITIONS,
    SERIES,
    SIZES,
    VERSIONS,
    Condition,
    Residuals,
    Steps,
    estimated,
    made_table,
    measured_tables,
    noise_on_record,
)

LEAST_RECALL, MOST_FALSE = "≥ 90 %", "≤ 5 %"


def run_condition(
    condition: Condition,
    *,
    tables: int,
    noise_floor_tables: int,
    seed: int,
    residuals: Sequence[Residuals],
    sessions: Sessions,
) -> dict[str, Any]:
    """Run every rule on the same tables."""
    rng = np.random.default_rng([seed, CONDITIONS.index(condition)])
    rules = session_rules(condition.metric) if condition.of_sessions else RULES
    source: Sequence[Any] = measured_tables(sessions, condition.metric) if condition.of_sessions else residuals
    numbers = range(tables + noise_floor_tables)
    made = [made_table(condition, rng, source, steps=number < tables) for number in numbers]
    return {name: _scored(rule, made, tables) for name, rule in rules.items()}


def about_sessions(source: Mapping[str, Any], sessions: Sessions) -> dict[str, Any]:
    """Return what sessions differ by, what is reported of them as they were measured, and the ratios themselves."""
    metrics = {}
    for metric in METRICS:
        tables, rules = measured_tables(sessions, metric), session_rules(metric)
        noises = {
            f"{case}/{fix}": estimated(ratios)
            for case, table in zip(sessions, tables, strict=True)
            for fix, ratios in table.items()
        }
        metrics[metric] = {
            "session_sd": {name: round(noise.session_sd, 5) for name, noise in noises.items()},
            "process_sd": {name: round(noise.process_sd, 5) for name, noise in noises.items()},
            "largest_difference": round(math.expm1(max(noise.largest_difference for noise in noises.values())), 5),
            "margin": SESSION_MARGIN[metric],
            "as_measured": {
                word: [sum(bool(steps) for table in tables for steps in rules[rule](table).values()), len(noises)]
                for word, rule in (("with", OURS), ("without", NO_MARGIN))
            },
        }
    count = len(next(iter(tables[0].values())))
    return {"source": source, "count": count, "cases": list(sessions), "metrics": metrics, "ratios": sessions}


def _scored(rule: Callable[[Table], Found], made: Sequence[tuple[Table, Steps]], tables: int) -> Data:
    """Count (hits, trials): shares are for the reader to divide, so that their uncertainty stays visible.

    A report that names several versions is right where the step's is among them, and never *at* its version.
    """
    answers = [(number, injected, rule(table)) for number, (table, injected) in enumerate(made)]
    series = [
        (*injected.get(name, (0, 0.0)), reported)  # version and size of the step, 0 where there is none
        for number, injected, answer in answers
        if number < tables
        for name, reported in answer.items()
    ]
    outcomes = [(size, [at for at in reported if version in at]) for version, size, reported in series if size]
    reports = [(at, version if size else None) for version, size, reported in series for at in reported]
    wrong = [(at, version) for at, version in reports if version not in at]
    exact = [any(len(at) == 1 for at in right) for _, right in outcomes]
    return {
        "recall": _share(exact),
        "recall_by_size": {
            f"{s:g}": _share([hit for hit, (size, _) in zip(exact, outcomes, strict=True) if size == s]) for s in SIZES
        },
        "series_without_step_flagged": _share([bool(reported) for _, size, reported in series if not size]),
        "false_among_reports": [len(wrong), len(reports)],
        "false_among_exact": _share([version not in at for at, version in reports if len(at) == 1]),
        "tables_without_steps_flagged": _share([any(f.values()) for number, _, f in answers if number >= tables]),
    }


def _share(hits: Sequence[bool]) -> list[int]:
    return [sum(hits), len(hits)]


def _sessions(options: Options) -> tuple[dict[str, Any], Sessions] | None:
    path = Path(options["sessions"]) if options["sessions"] else options.out / "sessions.jsonl"
    return read_sessions(path) if path.exists() else None


def settings_of(options: Options, residuals: Sequence[Residuals]) -> Data:
    """Return what all conditions of a summary share."""
    return {
        **{name: options[name] for name in ("tables", "noise_floor_tables", "seed")},
        **{"cells": len(residuals), "versions": VERSIONS, "series": SERIES},
        "median_spread": float(np.median([spread for _, spread in residuals])),
    }


def _trials(options: Options) -> list[Trial]:
    sessions = _sessions(options)
    shared = json.dumps(settings_of(options, noise_on_record(Path(options["residuals"]))), sort_keys=True)
    trials = [Trial(f"{one.name}@{shared}", one) for one in CONDITIONS if not one.of_sessions]
    if sessions:
        trials += [Trial(f"{one.name}@{shared}@{sessions[0]}", one) for one in CONDITIONS if one.of_sessions]
    return trials


def _run(trials: Iterator[Trial], options: Options) -> Iterator[Data]:
    residuals, measured = noise_on_record(Path(options["residuals"])), _sessions(options)
    settings, counts = settings_of(options, residuals), ("tables", "noise_floor_tables", "seed")
    for key, condition, _ in trials:
        source, sessions = measured if measured and condition.of_sessions else ({}, {})
        shared = {name: options[name] for name in counts}
        rules = run_condition(condition, residuals=residuals, sessions=sessions, **shared)
        yield {
            "key": key,
            "name": condition.name,
            "settings": settings,
            "condition": {**asdict(condition), "rules": rules, "commit": git_commit()},
            "sessions": about_sessions(source, sessions) if sessions else None,
        }


def _summary(lines: list[Data], options: Options) -> Data:
    """The conditions under the last line's settings, in the order of the list."""
    settings = lines[-1]["settings"]
    here = {line["name"]: line for line in lines if line["settings"] == settings}
    ordered = [here[condition.name] for condition in CONDITIONS if condition.name in here]
    sessions = [line["sessions"] for line in ordered if line["sessions"]]
    return {
        "settings": settings,
        "conditions": {line["name"]: line["condition"] for line in ordered},
        **({"sessions": sessions[-1]} if sessions else {}),
    }


def _figures(content: Data) -> list[Figure]:
    figures = []
    for name, condition in content["conditions"].items():
        rules = condition["rules"]
        ours = rules[OURS]
        smallest = plain_share(*ours["recall_by_size"][min(ours["recall_by_size"], key=float)])
        more = (
            f"; series without a step {plain_share(*ours['series_without_step_flagged'])}; tables without any "
            f"{plain_share(*ours['tables_without_steps_flagged'])}"
        )
        single = ours.get("false_among_exact", [0, 0])  # a stored summary may be older than this count
        if single[1]:
            more = f"; of a single version {plain_share(*single)}{more}"
        for words, score, target, beyond in (
            ("steps found at their version", "recall", LEAST_RECALL, f"; of the smallest {smallest}"),
            ("false among reports", "false_among_reports", MOST_FALSE, more),
        ):
            rivals = {rule: share_text(*scores[score]) for rule, scores in rules.items() if rule != OURS}
            hits, total = ours[score]
            figures.append(judged_share(f"{words}, {name}", hits, total, target, more=beyond, rivals=rivals))
        if single[1] and not meets(single[0] / single[1], MOST_FALSE):
            figures[-1] = replace(figures[-1], met=False)
    return figures


def _notes(content: Data) -> list[str]:
    """What intervals leave out, where the offsets between sessions come from, and of which commits conditions are."""
    settings, sessions = content["settings"], content.get("sessions")
    lines = [
        f"{settings['tables']} tables with steps and {settings['noise_floor_tables']} without per condition, seed "
        f"{settings['seed']}. Intervals take each step and each report for itself; those of a table share their noise.",
        _session_note(sessions)
        if sessions
        else "Sessions of equal code were not measured, so the conditions that need them are missing.",
    ]
    commits = Counter(str(one.get("commit") or "an unknown one") for one in content["conditions"].values())
    if len(commits) > 1:
        lines.append(f"Rows are of several commits: {', '.join(f'{n} of {name}' for name, n in commits.items())}.")
    return lines


def _session_note(sessions: Data) -> str:
    source = sessions["source"]
    parts = [
        f"Tables of sessions are {sessions['count']} sessions of equal code in random order, so no two tables are "
        f"independent ({', '.join(sessions['cases'])}; {source['cpu']}, torch {source['torch']}, commit "
        f"{source['commit'] or 'unknown'})."
    ]
    for metric, scatter in sessions["metrics"].items():
        session, process = (
            span([100 * value for value in scatter[name].values()], ".2g") for name in ("session_sd", "process_sd")
        )
        judged = scatter["as_measured"]
        parts.append(
            f"{metric}: beyond what processes explain, sessions scatter by {session} % (SD), a process by {process} %; "
            f"two sessions differ by up to {100 * scatter['largest_difference']:.1f} %. The sessions as measured, in "
            f"order: with the margin of {100 * scatter['margin']:.0f} % a change is reported in "
            f"{plain_share(*judged['with'])} series, without it in {plain_share(*judged['without'])}."
        )
    return " ".join(parts)


EXPERIMENT = Experiment(
    name="versions",
    title="change points: steps found and steps that are not there, beside other rules on the same tables",
    trials=_trials,
    run=_run,
    figures=_figures,
    summary=_summary,
    notes=_notes,
    settings={
        "tables": (6, 60),
        "noise_floor_tables": (10, 100),
        "seed": (0, 0),
        "residuals": ("results/cpu/records.jsonl", "results/cpu/records.jsonl"),
        "sessions": ("", ""),
    },
    stored="change-points.json",
)
