"""How often an injected step is found at its version, and how often one is reported that is not there.

Conventions: a *table* is one workload's: ``SERIES`` fixes × ``VERSIONS`` versions × a few processes, ratios around 1.
In a table with steps half of the series have one each, up or down, at a random version (the second and the last
included) and of a random size among ``SIZES``; the other half have none. Sizes are in standard deviations of the
noise, of one *process* or, three or five processes being averaged, of a version's *value*, which is smaller by √3 or
√5. Noise on the logarithm: normal, Student's t of 3 degrees of freedom (scaled to the same robust spread), or residuals
of real processes about their cell's median, each series from a cell of its own, at that cell's own spread. A step
counts as found at its own version only; *near* also counts the version beside it.

    python -m benchmarks.versions.trials --out trials.json --residuals results/cpu/records.jsonl

goes on where it stopped: conditions that the file holds are kept; under other settings it takes another file.

Contents: :class:`Condition`, :func:`run_condition`, :func:`real_residuals`, :func:`main`.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .rivals import RULES, Table

Floats = NDArray[np.float64]

VERSIONS = 10
SERIES = 8
SIZES = (3.0, 4.0, 6.0)
SCALE = 0.01
"""Of made-up noise: 1 % between processes."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """What the tables are made of.

    Attributes
    ----------
    noise : str
        ``"normal"``, ``"heavy"`` or ``"real"``.
    processes : int
    unit : str
        ``"process"`` or ``"value"``: whose standard deviation a step is measured in.
    """

    noise: str
    processes: int
    unit: str

    @property
    def name(self) -> str:
        """As in the file."""
        return f"{self.noise} noise, {self.processes} processes, steps in SD of a {self.unit}"


CONDITIONS = (
    Condition(noise="real", processes=3, unit="process"),
    Condition(noise="normal", processes=3, unit="process"),
    Condition(noise="heavy", processes=3, unit="process"),
    Condition(noise="real", processes=5, unit="process"),
    Condition(noise="normal", processes=3, unit="value"),
    Condition(noise="real", processes=3, unit="value"),
)


def real_residuals(path: Path) -> list[tuple[Floats, float]]:
    """Return the noise of processes on record, cell by cell.

    Parameters
    ----------
    path : Path
        Records of a run; cells with five or more processes are used.

    Returns
    -------
    list of (residuals, spread)
        Residuals of the log-ratios about the cell's median, inflated by √(n/(n−1)), and their spread: that of the
        differences between two of them, cut and corrected as for series.
    """
    from precision_eval.versions.series import pair_scale

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
    condition: Condition, *, tables: int, null_tables: int, seed: int, residuals: Sequence[tuple[Floats, float]]
) -> dict[str, Any]:
    """Run every rule on the same tables.

    Parameters
    ----------
    condition : Condition
    tables, null_tables : int
        With steps in half of the series, and without any.
    seed : int
    residuals : sequence of (array, float)
        As of :func:`real_residuals`; may be empty where the noise is made up.

    Returns
    -------
    dict
        Per rule: recall by size and by version, false reports per series and per report.
    """
    rng = np.random.default_rng([seed, CONDITIONS.index(condition)])
    made = [_table(condition, rng, residuals, steps=number < tables) for number in range(tables + null_tables)]
    return {name: _scored(rule, made, tables) for name, rule in RULES.items()}


def _scored(rule: Any, made: Sequence[tuple[Table, Mapping[str, tuple[int, float]]]], tables: int) -> dict[str, Any]:
    outcomes: list[tuple[int, float, bool, bool]] = []
    reports = false_reports = far_reports = flagged = quiet = 0
    null_flagged = 0
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
        null_flagged += number >= tables and any(found.values())
    null_tables = len(made) - tables
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
        "tables_without_steps_flagged": [null_flagged, null_tables],
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


def main() -> None:
    """Run the conditions that the file lacks, and print a line for each rule."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.versions.trials", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--residuals", type=Path, default=Path("results/cpu/records.jsonl"))
    parser.add_argument("--tables", type=int, default=60)
    parser.add_argument("--null-tables", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    residuals = _noise_on_record(given.residuals, parser)
    settings = {"tables": given.tables, "null_tables": given.null_tables, "seed": given.seed, "cells": len(residuals)}
    settings |= {"versions": VERSIONS, "series": SERIES, "median_spread": float(np.median([s for _, s in residuals]))}
    content = _content(given.out, settings, parser)
    for condition in CONDITIONS:
        if condition.name not in content["conditions"]:
            found = run_condition(
                condition, tables=given.tables, null_tables=given.null_tables, seed=given.seed, residuals=residuals
            )
            content["conditions"][condition.name] = asdict(condition) | {"rules": found}
            given.out.parent.mkdir(parents=True, exist_ok=True)
            given.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        print(condition.name, flush=True)
        for rule, scores in content["conditions"][condition.name]["rules"].items():
            shown = {name: scores[name] for name in ("recall", "recall_near", "recall_by_size")}
            false = {name: scores[name] for name in scores if name.startswith(("series", "false", "tables", "far"))}
            print(f"  {rule}: {shown | false}", flush=True)


if __name__ == "__main__":
    main()
