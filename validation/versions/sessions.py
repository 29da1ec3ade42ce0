"""Sessions of equal code: the tracked latencies, measured again and again as a sweep measures them at one version.

A *session* is what one environment of a sweep is given: a fresh interpreter that has imported torch and
run nothing, and in it, per case, the processes of :data:`precision_eval.history.tracking.FULL`, one after the
other. Code, torch and machine are the same in all of them, so whatever sessions differ by, beyond what processes
scatter by, is not a change. One line per session, appended as it ends; sessions of another machine, torch or commit
are not mixed. What a fix's status is does not change between sessions and is found out once, in a folder beside the
file.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from precision_eval.core.environment import cpu_model, git_commit, source_sha256
from precision_eval.core.errors import RecordError
from precision_eval.core.files import TrialFile
from precision_eval.core.workers import call_isolated
from precision_eval.history.outcomes import outcomes_of, preload
from precision_eval.history.tracking import FULL, TrackedCell
from validation.frame import Data, Experiment, Figure, Options, Trial

CASES: tuple[tuple[str, str], ...] = (
    ("imaginairy-time-embed", "cpu"),
    ("metavoice-decode", "cpu"),
    ("attention-decode", "metavoice"),
)
"""Case and size: of those whose latency the committed sweep holds, the ones that take seconds."""

METRICS = {"latency_ratio": "ratio_to_baseline", "latency_to_anchor": "ratio_to_anchor"}
"""Paired metric to its name in the data of an outcome."""

Sessions = dict[str, dict[str, dict[str, list[list[float]]]]]
"""Case → metric → fix → one list of ratios, one per process, for each session."""


def measured_session(folder: Path, cases: Sequence[tuple[str, str]]) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Measure a session in children of this process, which has imported torch and run nothing."""
    warnings.simplefilter("ignore")
    preload()
    ratios: dict[str, dict[str, dict[str, list[float]]]] = {}
    shutil.rmtree(folder / f"run.{FULL.name}", ignore_errors=True)  # records of the last session
    for case, size in cases:
        place = TrackedCell(case=case, mode="eager", size=size)
        outcomes = outcomes_of(place, "latency", folder=folder, effort=FULL)
        ratios[f"{case}/{size}"] = {
            metric: {
                fix: [float(f"{value:.6g}") for value in (one.data or {})[name]]
                for fix, one in outcomes.items()
                if one.status == "passed" and (one.data or {}).get(name)
            }
            for metric, name in METRICS.items()
        }
    return ratios


def read_sessions(path: Path) -> tuple[dict[str, Any], Sessions]:
    """Return where sessions were measured, and their ratios."""
    lines = TrialFile(path).read()
    try:
        here = [line for line in lines if line["source"] == lines[-1]["source"]]
        measured = [line["found"] for line in here]
        sessions = {
            case: {metric: _in_all([one[case][metric] for one in measured]) for metric in METRICS}
            for case in (measured[0] if measured else ())
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise RecordError(
            f"{path} is no file of sessions ({error!r}); python -m validation sessions makes one"
        ) from error
    if len(measured) < 3:
        raise RecordError(f"{path} holds {len(measured)} sessions of one machine and commit; at least 3 are needed")
    return dict(here[-1]["source"]), sessions


def _in_all(sessions: Sequence[dict[str, list[float]]]) -> dict[str, list[list[float]]]:
    shared = [fix for fix in sessions[0] if all(fix in session for session in sessions)]
    return {fix: [session[fix] for session in sessions] for fix in shared}


def _source() -> dict[str, Any]:
    """Return what sessions share."""
    return {
        "cpu": cpu_model(),
        "torch": metadata.version("torch"),
        "commit": git_commit(),
        "source_sha256": source_sha256(),
        "processes": FULL.options.processes,
    }


def _trials(options: Options) -> list[Trial]:
    source = _source()
    stem = f"session/{source['source_sha256'][:12]}/{source['torch']}/{source['cpu']}"
    folder = options.out / f"statuses-{source['source_sha256'][:12]}"
    return [Trial(f"{stem}/{number}", (source, folder)) for number in range(options["sessions"])]


def _run(trials: Iterator[Trial], options: Options) -> Iterator[Data]:
    for key, (source, folder), _ in trials:
        yield {"key": key, "source": source, "at": datetime.now(UTC).isoformat(), "found": one_session(folder)}


def one_session(folder: Path) -> Data:
    """Measure a session in a fresh interpreter."""
    folder.mkdir(parents=True, exist_ok=True)
    session: Data = call_isolated("validation.versions.sessions:measured_session", folder, CASES, start="spawn")
    return session


def _figures(lines: list[Data]) -> list[Figure]:
    """How many sessions share the last one's machine and commit."""
    source = lines[-1]["source"]
    here = sum(line["source"] == source for line in lines)
    return [
        Figure(
            "sessions of one machine and commit", f"{here}, {source['cpu']}, torch {source['torch']}", "≥ 3", here >= 3
        )
    ]


EXPERIMENT = Experiment(
    name="sessions",
    title="tracked latencies of equal code, measured again and again",
    trials=_trials,
    run=_run,
    figures=_figures,
    settings={"sessions": (3, 12)},
)
