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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_eval.core.environment import git_commit
from precision_eval.core.errors import RecordError
from precision_eval.studies.versions.changes import SESSION_MARGIN
from validation.frame import Data, Experiment, Figure, Options, Trial
from validation.report import plain_share, share_text, span
from validation.versions.rivals import NO_MARGIN, OURS, RULES, Table, session_rules
from validation.versions.session_noise import estimated, made_table, measured_tables
from validation.versions.sessions import METRICS, Sessions, read_sessions

Floats = NDArray[np.float64]

VERSIONS = 10
SERIES = 8
SIZES = (3.0, 4.0, 6.0)
SCALE = 0.01
"""Of made-up noise: 1 % between processes."""

LEAST_RECALL = 0.90
MOST_FALSE = 0.05


@dataclass(frozen=True, kw_only=True)
class Condition:
    """What the tables are made of."""

    noise: str
    processes: int
    unit: str
    metric: str = "latency_ratio"

    @property
    def name(self) -> str:
        """As in the file."""
        if self.noise == "sessions":
            margin = f"{100 * SESSION_MARGIN[self.metric]:.0f} %"
            return f"sessions, {self.metric}, {self.processes} processes, steps in SD of a {self.unit} beyond {margin}"
        return f"{self.noise} noise, {self.processes} processes, steps in SD of a {self.unit}"


CONDITIONS = (
    Condition(noise="real", processes=3, unit="process"),
    Condition(noise="normal", processes=3, unit="process"),
    Condition(noise="heavy", processes=3, unit="process"),
    Condition(noise="real", processes=5, unit="process"),
    Condition(noise="normal", processes=3, unit="value"),
    Condition(noise="real", processes=3, unit="value"),
    Condition(noise="sessions", processes=3, unit="process"),
    Condition(noise="sessions", processes=3, unit="process", metric="latency_to_anchor"),
)


def real_residuals(path: Path) -> list[tuple[Floats, float]]:
    """Return the noise of processes on record, cell by cell."""
    from precision_eval.stats.robust import pair_scale

    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        ratios = (json.loads(line).get("data") or {}).get("process_ratios") or ()
        if len(ratios) < 5 or len(set(ratios)) < 5:
            continue
        logs = np.log(np.asarray(ratios))
        residuals = (logs - np.median(logs)) * math.sqrt(logs.size / (logs.size - 1.0))
        found.append((residuals, float(pair_scale(logs[None, None])[0])))
    return found


def _series_noise(
    condition: Condition, rng: np.random.Generator, residuals: Sequence[tuple[Floats, float]]
) -> tuple[Floats, float]:
    """Return noise of one series, shape (VERSIONS, processes), and its standard deviation."""
    shape = (VERSIONS, condition.processes)
    if condition.noise == "normal":
        return SCALE * rng.standard_normal(shape), SCALE
    if condition.noise == "heavy":
        return SCALE * rng.standard_t(3.0, shape) * (0.6745 / 0.7649), SCALE  # quartiles of normal and t₃
    pool, scale = residuals[int(rng.integers(len(residuals)))]
    return rng.choice(pool, shape), scale


def _table(
    condition: Condition, rng: np.random.Generator, residuals: Sequence[tuple[Floats, float]], *, steps: bool
) -> tuple[Table, dict[str, tuple[int, float]]]:
    """Return a table, and where its steps are: name to (version, size)."""
    table: dict[str, list[Floats]] = {}
    injected = {}
    for number in range(SERIES):
        noise, scale = _series_noise(condition, rng, residuals)
        levels = np.zeros(VERSIONS)
        if steps and number % 2:
            version, size = int(rng.integers(1, VERSIONS)), float(rng.choice(SIZES))
            unit = scale / (math.sqrt(condition.processes) if condition.unit == "value" else 1.0)
            levels[version:] += float(rng.choice([-1.0, 1.0])) * size * unit
            injected[f"fix_{number}"] = (version, size)
        table[f"fix_{number}"] = list(np.exp(levels[:, None] + noise))
    return table, injected


def run_condition(
    condition: Condition,
    *,
    tables: int,
    noise_floor_tables: int,
    seed: int,
    residuals: Sequence[tuple[Floats, float]],
    sessions: Sessions | None = None,
) -> dict[str, Any]:
    """Run every rule on the same tables."""
    rng = np.random.default_rng([seed, CONDITIONS.index(condition)])
    rules = RULES
    if condition.noise == "sessions":
        rules, metric = session_rules(condition.metric), condition.metric
        measured = measured_tables(sessions or {}, metric)
        made = [
            made_table(measured, rng, versions=VERSIONS, sizes=SIZES, metric=metric, steps=number < tables)
            for number in range(tables + noise_floor_tables)
        ]
    else:
        made = [
            _table(condition, rng, residuals, steps=number < tables) for number in range(tables + noise_floor_tables)
        ]
    return {name: _scored(rule, made, tables) for name, rule in rules.items()}


def about_sessions(source: Mapping[str, Any], sessions: Sessions) -> dict[str, Any]:
    """Return what sessions differ by, what is reported of them as they were measured, and the ratios themselves."""
    metrics = {}
    for metric in METRICS:
        noises = {
            f"{case}/{fix}": noise
            for case, members in sessions.items()
            for fix, noise in ((fix, estimated(ratios)) for fix, ratios in members[metric].items())
        }
        tables, rules = measured_tables(sessions, metric), session_rules(metric)
        counted = {
            word: [sum(bool(places) for table in tables for places in rules[rule](table).values()), len(noises)]
            for word, rule in (("with", OURS), ("without", NO_MARGIN))
        }
        metrics[metric] = {
            "session_sd": {name: round(noise.session_sd, 5) for name, noise in noises.items()},
            "process_sd": {name: round(noise.process_sd, 5) for name, noise in noises.items()},
            "largest_difference": round(math.expm1(max(noise.largest_difference for noise in noises.values())), 5),
            "margin": SESSION_MARGIN[metric],
            "as_measured": counted,
        }
    first = next(iter(next(iter(sessions.values())).values()))
    count = len(next(iter(first.values())))
    held = {"source": dict(source), "count": count, "cases": list(sessions), "metrics": metrics}
    return held | {"ratios": sessions}


def _scored(rule: Any, made: Sequence[tuple[Table, Mapping[str, tuple[int, float]]]], tables: int) -> dict[str, Any]:
    outcomes: list[tuple[int, float, bool, bool]] = []
    reports = false_reports = far_reports = flagged = quiet = 0
    noise_floor_flagged = 0
    for number, (table, injected) in enumerate(made):
        found = rule(table)
        for name, places in found.items():
            version, size = injected.get(name, (0, 0.0))
            if size:
                near = any(abs(place - version) <= 1 for place in places)
                outcomes.append((version, size, version in places, near))
            elif number < tables:
                quiet, flagged = quiet + 1, flagged + bool(places)
            reports += len(places) if number < tables else 0
            wrong = [place for place in places if place != version or not size]
            false_reports += len(wrong) if number < tables else 0
            far_reports += sum(not size or abs(place - version) > 1 for place in wrong) if number < tables else 0
        noise_floor_flagged += number >= tables and any(found.values())
    noise_floor_tables = len(made) - tables
    return {
        "recall": _share([exact for _, _, exact, _ in outcomes]),
        "recall_near": _share([near for *_, near in outcomes]),
        "recall_by_size": {f"{s:g}": _share([e for _, z, e, _ in outcomes if z == s]) for s in SIZES},
        "recall_by_version": {str(v): _share([e for w, _, e, _ in outcomes if w == v]) for v in range(1, VERSIONS)},
        "recall_at_3_by_version": {
            str(v): _share([e for w, z, e, _ in outcomes if w == v and z == SIZES[0]]) for v in range(1, VERSIONS)
        },
        "series_without_step_flagged": [flagged, quiet],
        "false_among_reports": [false_reports, reports],
        "far_among_reports": [far_reports, reports],
        "tables_without_steps_flagged": [noise_floor_flagged, noise_floor_tables],
    }


def _share(hits: Sequence[bool]) -> list[int]:
    """Return (hits, trials): shares are for the reader to divide, so that their uncertainty stays visible."""
    return [sum(hits), len(hits)]


def noise_on_record(path: Path) -> list[tuple[Floats, float]]:
    """Return :func:`real_residuals`; a file that has none is named in one line."""
    try:
        residuals = real_residuals(path)
    except OSError as error:
        raise RecordError(f"residuals={path} cannot be read: {error.strerror}; name a run's records") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise RecordError(f"residuals={path} is no file of records ({error}); name a run's records") from error
    if not residuals:
        raise RecordError(f"residuals={path} has no cell with five processes; name another run's")
    return residuals


def _sessions(options: Options) -> tuple[dict[str, Any], Sessions] | None:
    path = Path(options["sessions"]) if options["sessions"] else options.out / "sessions.jsonl"
    return read_sessions(path) if path.exists() else None


def settings_of(options: Options, residuals: Sequence[tuple[Floats, float]]) -> Data:
    """Return what all conditions of a summary share."""
    return {
        **{name: options[name] for name in ("tables", "noise_floor_tables", "seed")},
        **{"cells": len(residuals), "versions": VERSIONS, "series": SERIES},
        "median_spread": float(np.median([spread for _, spread in residuals])),
    }


def _trials(options: Options) -> list[Trial]:
    sessions = _sessions(options)
    shared = json.dumps(settings_of(options, noise_on_record(Path(options["residuals"]))), sort_keys=True)
    keys = {condition: f"{condition.name}@{shared}" for condition in CONDITIONS}
    if sessions is None:
        keys = {condition: key for condition, key in keys.items() if not _of_sessions(condition)}
    else:
        keys |= {condition: f"{key}@{sessions[0]}" for condition, key in keys.items() if _of_sessions(condition)}
    return [Trial(key, condition) for condition, key in keys.items()]


def _of_sessions(condition: Condition) -> bool:
    return condition.noise == "sessions"


def _run(trials: Iterator[Trial], options: Options) -> Iterator[Data]:
    residuals, sessions = noise_on_record(Path(options["residuals"])), _sessions(options)
    for key, condition, _ in trials:
        rules = run_condition(
            condition,
            tables=options["tables"],
            noise_floor_tables=options["noise_floor_tables"],
            seed=options["seed"],
            residuals=residuals,
            sessions=sessions[1] if sessions else None,
        )
        about = about_sessions(*sessions) if sessions and _of_sessions(condition) else None
        found = {**asdict(condition), "rules": rules, "commit": git_commit()}
        settings = settings_of(options, residuals)
        yield {"key": key, "name": condition.name, "settings": settings, "condition": found, "sessions": about}


def _summary(lines: list[Data], options: Options) -> Data:
    """The conditions under the last line's settings, in the order of the list."""
    settings = lines[-1]["settings"]
    here = {line["name"]: line for line in lines if line["settings"] == settings}
    ordered = [here[condition.name] for condition in CONDITIONS if condition.name in here]
    sessions = [line["sessions"] for line in ordered if line["sessions"]]
    return {
        "settings": settings,
        "targets": {"recall": LEAST_RECALL, "false": MOST_FALSE},
        "conditions": {line["name"]: line["condition"] for line in ordered},
        **({"sessions": sessions[-1]} if sessions else {}),
    }


def _figures(content: Data) -> list[Figure]:
    figures = []
    for name, condition in content["conditions"].items():
        rules = condition["rules"]
        ours = rules[OURS]
        smallest = ours["recall_by_size"][min(ours["recall_by_size"], key=float)]
        without = (
            f"series without a step, reported {plain_share(*ours['series_without_step_flagged'])}; tables without any "
            f"{plain_share(*ours['tables_without_steps_flagged'])}"
        )
        figures += [
            _rate(
                f"steps found at their version, {name}", rules, "recall",
                least=LEAST_RECALL, more=f"; of the smallest {plain_share(*smallest)}",
            ),
            _rate(
                f"false among reports, {name}", rules, "false_among_reports",
                most=MOST_FALSE, more=f"; not beside a step {plain_share(*ours['far_among_reports'])}; {without}",
            ),
            _rate(f"steps found within one version, {name}", rules, "recall_near"),
            _rate(f"series without a step, reported, {name}", rules, "series_without_step_flagged"),
            _rate(f"tables without any step, reported, {name}", rules, "tables_without_steps_flagged"),
        ]  # fmt: skip
    return figures


def _rate(
    name: str, rules: Mapping[str, Data], score: str, *, least: float = 0.0, most: float = 1.0, more: str = ""
) -> Figure:
    """A share of this suite's rule, with the others'."""
    rivals = {rule: share_text(*scores[score]) for rule, scores in rules.items() if rule != OURS}
    hits, total = rules[OURS][score]
    target = f"≥ {100 * least:g} %" if least else f"≤ {100 * most:g} %" if most < 1.0 else ""
    met = least * total <= hits <= most * total if target and total else None
    return Figure(name, share_text(hits, total) + more, target, met, rivals)


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
    for metric, found in sessions["metrics"].items():
        session, process = (
            span([100 * value for value in found[name].values()], ".2g") for name in ("session_sd", "process_sd")
        )
        judged = found["as_measured"]
        parts.append(
            f"{metric}: beyond what processes explain, sessions scatter by {session} % (SD), a process by {process} %; "
            f"two sessions differ by up to {100 * found['largest_difference']:.1f} %. The sessions as measured, in "
            f"order: with the margin of {100 * found['margin']:.0f} % a change is reported in "
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
