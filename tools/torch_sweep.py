"""A loop over ``asv run``: the benchmarks of one commit under each torch version of ``asv.versions.json``.

asv stores what a run measured at its end, so each version is a run of its own, and so is each round. Latencies come
last, in rounds: every version once, then every version again, a process each, so that what the machine does from one
hour to the next is among a version's samples and is not taken for a change of torch. The same command goes on where it
was stopped: asv skips what it has, and ``rounds.jsonl`` beside its results names the rounds that ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from precision_eval.core.errors import ParameterError
from precision_eval.core.files import read_json, write_json
from precision_eval.history.tracking import METRICS, PROCESS_VARIABLE

ROOT = Path(__file__).resolve().parents[1]
CONFIGURATION = ROOT / "asv.versions.json"
ROUNDS_NAME = "rounds.jsonl"  # asv takes every .json below its results for one of them
LATENCIES = rf"\.({'|'.join(metric.method for metric in METRICS if metric.samples)})(\(|$)"
OTHERS = rf"\.(?!({'|'.join(metric.method for metric in METRICS if metric.samples)})(\(|$))\w+(\(.*)?$"
FAILED_BENCHMARKS = 2  # asv's exit code where a benchmark failed and the others were stored


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What is asked for."""

    versions: tuple[str, ...]
    commit: str
    results: Path
    rounds: int
    bench: str | None = None

    def ended(self, version: str, round_number: int) -> dict[str, object]:
        """Return the line of a round that ended."""
        return {"torch": version, "commit": self.commit, "round": round_number}

    def run(self, version: str, pattern: str, *options: str, **variables: str) -> int:
        """Run asv in one version's environment; return its exit code."""
        content = read_json(CONFIGURATION)
        configuration = ROOT / content["env_dir"] / f"asv-torch{version}.conf"
        places = {name: str(ROOT / content[name]) for name in ("repo", "benchmark_dir", "env_dir")}
        matrix = {"req": {**content["matrix"]["req"], "torch": [version]}}
        configuration.parent.mkdir(parents=True, exist_ok=True)
        write_json(configuration, {**content, **places, "results_dir": str(self.results), "matrix": matrix})
        command = [sys.executable, "-m", "asv", "run", "--config", str(configuration), "--bench", pattern]
        command += ["--record-samples", "--show-stderr", *options, f"{self.commit}^!"]
        return subprocess.run(command, cwd=ROOT, env=os.environ | variables, check=False).returncode


def plan_sweep(
    versions: Sequence[str] = (), *, bench: str | None = None, results: Path | None = None, rounds: int = 3
) -> Sweep:
    """Work out what is asked for; nothing is installed or measured yet."""
    content = read_json(CONFIGURATION)
    known = tuple(content["matrix"]["req"]["torch"])
    if unknown := sorted(set(versions) - set(known)):
        raise ParameterError(
            f"torch {', '.join(unknown)} is not in {CONFIGURATION.name}; it has {', '.join(known)}; add it there"
        )
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    folder = (results or ROOT / content["results_dir"]).resolve()
    return Sweep(
        versions=tuple(version for version in known if version in versions or not versions),
        commit=commit.stdout.strip(),
        results=folder,
        rounds=rounds,
        bench=bench,
    )


def run_sweep(sweep: Sweep) -> list[str]:
    """Measure every version, then the latencies in rounds; return the versions where asv broke off or failed."""
    sweep.results.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "asv", "machine", "--yes"], cwd=ROOT, check=True)
    incomplete = {}
    for version in sweep.versions:
        incomplete[version] = sweep.run(version, sweep.bench or OTHERS, "--skip-existing-successful")
    if sweep.bench is None:
        for round_number, version in turns(sweep):
            append = ["--append-samples"] if round_number > 1 else []
            process = {PROCESS_VARIABLE: str(round_number - 1)}
            code = sweep.run(version, LATENCIES, *append, **process)
            incomplete[version] = incomplete[version] or code
            if code in (0, FAILED_BENCHMARKS):
                with (sweep.results / ROUNDS_NAME).open("a", encoding="utf-8") as file:
                    file.write(json.dumps(sweep.ended(version, round_number)) + "\n")
    return [version for version, code in incomplete.items() if code]


def turns(sweep: Sweep) -> Iterator[tuple[int, str]]:
    """Yield the rounds that have not ended; every second one goes back, so that a steady drift cancels."""
    path = sweep.results / ROUNDS_NAME
    done = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    for round_number in range(1, sweep.rounds + 1):
        for version in sweep.versions if round_number % 2 else reversed(sweep.versions):
            if sweep.ended(version, round_number) not in done:
                yield round_number, version
