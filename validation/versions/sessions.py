"""Sessions of equal code: the tracked latencies, measured again and again as a sweep measures them at one version.

Conventions: a *session* is what one environment of a sweep is given: a fresh interpreter that has imported torch and
run nothing, and in it, per case, the processes of :data:`precision_eval.studies.tracking.FULL`, one after the
other. Code, torch and machine are the same in all of them, so whatever sessions differ by, beyond what processes
scatter by, is not a change. One line per session, appended as it ends; sessions of another machine, torch or commit
are not mixed. What a fix's status is does not change between sessions and is found out once, in a folder beside the
file.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from precision_eval.core.errors import RecordError
from precision_eval.core.json_lines import TrialFile

CASES: tuple[tuple[str, str], ...] = (
    ("imaginairy-time-embed", "cpu"),
    ("metavoice-decode", "cpu"),
    ("attention-decode", "metavoice"),
)
"""Case and size: of those whose latency the committed sweep holds, the ones that take seconds."""

METRICS = {"latency_ratio": "ratio_to_baseline", "latency_to_anchor": "ratio_to_anchor"}
"""Paired metric to its name in the data of an outcome."""

DEFAULT = Path("runs/versions/sessions.jsonl")
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Sessions = dict[str, dict[str, dict[str, list[list[float]]]]]
"""Case → metric → fix → one list of ratios, one per process, for each session."""


def measured_session(folder: Path) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Measure a session in children of this process."""
    from precision_eval.studies.tracking import FULL, Place, outcomes_of

    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    shutil.rmtree(folder / f"run.{FULL.name}", ignore_errors=True)  # records of the last session
    for case, size in CASES:
        place = Place(case=case, mode="eager", size=size)
        outcomes = outcomes_of(place, "latency", folder=folder, effort=FULL)
        found[f"{case}/{size}"] = {
            metric: {
                fix: [float(f"{value:.6g}") for value in (one.data or {})[name]]
                for fix, one in outcomes.items()
                if one.status == "passed" and (one.data or {}).get(name)
            }
            for metric, name in METRICS.items()
        }
    return found


def read_sessions(path: Path) -> tuple[dict[str, Any], Sessions]:
    """Return where sessions were measured, and their ratios."""
    lines = TrialFile(path).read()
    try:
        here = [line for line in lines if line["source"] == lines[-1]["source"]]
        found = [line["found"] for line in here]
        sessions = {
            case: {metric: _in_all([one[case][metric] for one in found]) for metric in METRICS}
            for case in (found[0] if found else ())
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise RecordError(
            f"{path} is no file of sessions ({error!r}); python -m validation.versions.sessions makes one"
        ) from error
    if len(found) < 3:
        raise RecordError(f"{path} holds {len(found)} sessions of one machine and commit; at least 3 are needed")
    return dict(here[-1]["source"]), sessions


def _in_all(found: Sequence[dict[str, list[float]]]) -> dict[str, list[list[float]]]:
    return {fix: [one[fix] for one in found] for fix in found[0] if all(fix in one for one in found)}


def _source() -> dict[str, Any]:
    """Return what sessions share."""
    from precision_eval.core.environment import cpu_model, git_commit, source_sha256
    from precision_eval.studies.tracking import FULL

    return {
        "cpu": cpu_model(),
        "torch": metadata.version("torch"),
        "commit": git_commit(),
        "source_sha256": source_sha256(),
        "processes": FULL.options.processes,
    }


def main() -> int:
    """Measure the sessions that are missing."""
    for name in _THREADS:
        os.environ.setdefault(name, "1")  # before numpy is loaded, here and in the interpreters that measure
    options = _parser().parse_args()
    if options.one_into is not None:
        from precision_eval.studies.tracking import preload

        preload("latency")
        print(json.dumps(measured_session(options.one_into), allow_nan=False))
        return 0
    file, source, started = TrialFile(options.out), _source(), time.monotonic()
    known = sum(line.get("source") == source for line in file.read())
    for number in range(known, options.sessions):
        if time.monotonic() - started > options.slice_s:
            print(f"{options.sessions - number} sessions still to do; the same command goes on from here")
            break
        begun = time.monotonic()
        found = _one_session(options.out.parent / f"statuses-{source['source_sha256'][:12]}")
        key = f"session/{source['source_sha256'][:12]}/{source['torch']}/{source['cpu']}/{number}"
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        file.append({"key": key, "source": source, "at": stamp, "found": found})
        print(f"{number + 1} of {options.sessions} sessions, {time.monotonic() - begun:.0f} s", flush=True)
    return 0


def _one_session(folder: Path) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-W", "ignore", "-m", "validation.versions.sessions", "--one-into", str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit("a session could not be measured; its message stands above; run again to go on")
    return json.loads(done.stdout.splitlines()[-1])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m validation.versions.sessions", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=DEFAULT)
    parser.add_argument("--sessions", type=int, default=12)
    parser.add_argument("--slice-s", type=float, default=float("inf"), help="begin no session after this long")
    parser.add_argument("--one-into", type=Path, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
