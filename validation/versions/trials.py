"""How often an injected step is found at its version, and how often one is reported that is not there."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_eval.core.environment import collect
from precision_eval.core.errors import PrecisionEvalError
from precision_eval.studies.versions.changes import SESSION_MARGIN
from validation.versions.rivals import NO_MARGIN, OURS, RULES, Table, session_rules
from validation.versions.session_noise import Noise, estimated, made_table, measured_tables
from validation.versions.sessions import DEFAULT, METRICS, Sessions, read_sessions

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


def session_noises(sessions: Sessions, metric: str) -> dict[str, dict[str, Noise]]:
    """Return the noise of every series of a metric: case → fix → noise."""
    return {
        case: {fix: estimated(ratios) for fix, ratios in metrics[metric].items()} for case, metrics in sessions.items()
    }


def about_sessions(source: Mapping[str, Any], sessions: Sessions) -> dict[str, Any]:
    """Return what sessions differ by, what is reported of them as they were measured, and the ratios themselves."""
    metrics = {}
    for metric in METRICS:
        noises = {
            f"{case}/{fix}": noise
            for case, members in session_noises(sessions, metric).items()
            for fix, noise in members.items()
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


def _noise_on_record(path: Path, parser: argparse.ArgumentParser) -> list[tuple[Floats, float]]:
    """Return :func:`real_residuals`, or end with one line and exit code 2."""
    try:
        found = real_residuals(path)
    except OSError as error:
        parser.exit(2, f"{parser.prog}: --residuals {path} cannot be read: {error.strerror}; name a run's records\n")
    except (ValueError, TypeError, AttributeError) as error:
        parser.exit(2, f"{parser.prog}: --residuals {path} is no file of records ({error}); name a run's records\n")
    if not found:
        parser.exit(2, f"{parser.prog}: --residuals {path} has no cell with five processes; name another run's\n")
    return found


def _content(path: Path, settings: Mapping[str, Any], parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Return what is done under these settings, or end with one line and exit code 2 where the file is of others."""
    if not path.exists():
        return {"settings": dict(settings), "conditions": {}}
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        held = content["settings"]
        other = [name for name in {**settings, **held} if settings.get(name) != held.get(name)]
        content["conditions"].keys()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        parser.exit(2, f"{parser.prog}: {path} is no file of trials ({error}); give another --out\n")
    if other:
        differing = ", ".join(f"{name} {held.get(name)} there, {settings.get(name)} asked for" for name in other)
        parser.exit(2, f"{parser.prog}: {path} holds trials under other settings ({differing}); give another --out\n")
    return content


def _with_sessions(content: dict[str, Any], path: Path, parser: argparse.ArgumentParser) -> Sessions | None:
    """Return the sessions of the file of trials, else those measured, which come to stand in it; None without any."""
    held = content.get("sessions")
    if held and any(one["margin"] != SESSION_MARGIN[metric] for metric, one in held["metrics"].items()):
        held = content["sessions"] = about_sessions(held["source"], held["ratios"])
    if not path.exists():
        return None if held is None else dict(held["ratios"])
    try:
        source, sessions = read_sessions(path)
    except (PrecisionEvalError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    if held is None:
        content["sessions"] = about_sessions(source, sessions)
    elif held["ratios"] != sessions:
        parser.exit(2, f"{parser.prog}: --out holds trials of other sessions than {path}; give another --out\n")
    return sessions


def _store(path: Path, content: Mapping[str, Any]) -> None:
    """Write the file whole: a stopped run loses a condition and no more."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    partial.replace(path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m validation.versions.trials", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--residuals", type=Path, default=Path("results/cpu/records.jsonl"))
    parser.add_argument("--sessions", type=Path, default=DEFAULT, help="of validation.versions.sessions")
    parser.add_argument("--tables", type=int, default=60)
    parser.add_argument("--null-tables", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slice-s", type=float, default=math.inf, help="begin no condition after this long")
    return parser


def main() -> None:
    """Run the conditions that the file lacks, and print a line for each rule."""
    parser = _parser()
    given = parser.parse_args()
    started = time.monotonic()
    residuals = _noise_on_record(given.residuals, parser)
    settings = {
        "tables": given.tables,
        "null_tables": given.noise_floor_tables,
        "seed": given.seed,
        "cells": len(residuals),
    }
    settings |= {"versions": VERSIONS, "series": SERIES, "median_spread": float(np.median([s for _, s in residuals]))}
    content = _content(given.out, settings, parser)
    content["targets"] = {"recall": LEAST_RECALL, "false": MOST_FALSE}
    known = {condition.name for condition in CONDITIONS}  # under another margin a condition has another name
    content["conditions"] = {name: one for name, one in content["conditions"].items() if name in known}
    sessions = _with_sessions(content, given.sessions, parser)
    for condition in CONDITIONS:
        if condition.noise == "sessions" and sessions is None:
            print(f"{condition.name}: left out; python -m validation.versions.sessions measures what it needs")
            continue
        if condition.name not in content["conditions"]:
            if time.monotonic() - started > given.slice_s:
                print("conditions still to do; the same command goes on from here")
                break
            found = run_condition(
                condition,
                tables=given.tables,
                noise_floor_tables=given.noise_floor_tables,
                seed=given.seed,
                residuals=residuals,
                sessions=sessions,
            )
            content["environment"] = collect("cpu")
            commit = content["environment"]["package"]["git_commit"]
            content["conditions"][condition.name] = asdict(condition) | {"rules": found, "commit": commit}
            _store(given.out, content)
        print(condition.name, flush=True)
        for rule, scores in content["conditions"][condition.name]["rules"].items():
            shown = {name: scores[name] for name in ("recall", "recall_near", "recall_by_size")}
            false = {name: scores[name] for name in scores if name.startswith(("series", "false", "tables", "far"))}
            print(f"  {rule}: {shown | false}", flush=True)


if __name__ == "__main__":
    main()
