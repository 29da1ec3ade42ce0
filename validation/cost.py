"""What asv costs its user: wall time of its two commands on a fresh checkout, and of making their environment.

Each command has a checkout of its own, at the commit of this one, and makes its environment there (packages come from
the installers' caches or from an index, as this machine is set up), told as the Makefile tells it: nothing is compiled
that is not imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from precision_eval.core.errors import PrecisionEvalError
from validation.frame import ROOT, Data, Experiment, Figure, Options, Trial, each

TIMED: dict[tuple[str, ...], float] = {
    ("run", "--record-samples", "--show-stderr"): 600.0,
    ("run", "--quick", "--show-stderr"): 120.0,
}
"""A command, as in the Makefile's ``asv`` and as a smoke test, to the seconds that it may take."""

ENVIRONMENT = ("run", "--quick", "--bench", "track_torch_version")
"""What makes the environment and builds the package; ``asv setup`` does the former, and its exit code is always 1."""


def _environment() -> Data:
    """The machine and the commit, which every run keeps: runs on others are measured anew."""
    from precision_eval.core.environment import collect

    found = collect("cpu")
    return {**found, "package": {**found["package"], "git_commit": _git("rev-parse", "HEAD")}}


def _trials(options: Options) -> list[Trial]:
    import hashlib

    environment = _environment()
    here = hashlib.sha256(json.dumps(environment, sort_keys=True).encode()).hexdigest()[:12]
    part = ("--bench", options["bench"]) if options["bench"] else ()  # to try it out; then nothing is judged
    return [
        Trial(
            f"{' '.join(('asv', *words, *part))}@{here}",
            ((*words, *part), None if part else target_s, environment),
        )
        for words, target_s in TIMED.items()
    ]


def _timed(spec: tuple[tuple[str, ...], float | None, Data]) -> Data:
    """Run one of asv's commands on a checkout of its own."""
    from tools.torch_versions.environments import disk_bytes

    words, target_s, environment = spec
    command = " ".join(("asv", *words))
    with tempfile.TemporaryDirectory(prefix="asv-cost-", ignore_cleanup_errors=True) as folder:
        clone = Path(folder) / "checkout"
        _git("clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone))
        _git("-C", str(clone), "checkout", "--quiet", "--detach", environment["package"]["git_commit"])
        seconds = []
        for arguments in (("machine", "--yes"), ENVIRONMENT, words):
            command_line, started = [sys.executable, "-m", "asv", *arguments], time.monotonic()
            if subprocess.run(command_line, cwd=clone, env=_as_make(), check=False).returncode:
                raise PrecisionEvalError(f"{command} failed, as it says above; nothing of it is kept")
            seconds.append(round(time.monotonic() - started, 1))
        return {
            "command": command,
            "target_s": target_s,
            "environment_s": seconds[1],
            "seconds": seconds[2],
            "benchmarks": _benchmarks(clone / ".asv" / "results"),
            "environment_bytes": disk_bytes(clone / ".asv" / "env"),
            "environment": environment,
        }


def _as_make() -> dict[str, str]:
    """Return the environment that ``make asv`` gives."""
    here = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return here | {"PIP_NO_COMPILE": "1"}


def _benchmarks(results: Path) -> int:
    """Count the benchmarks that have a result, or were found not to apply."""
    names: set[str] = set()
    for path in results.glob("*/*.json"):
        if path.name != "machine.json":
            names |= set(json.loads(path.read_text(encoding="utf-8"))["results"])
    return len(names)


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def _summary(lines: list[Data], options: Options) -> Data:
    latest = {line["command"]: {name: value for name, value in line.items() if name != "key"} for line in lines}
    return {"runs": list(latest.values())}


def _figures(content: Data) -> list[Figure]:
    return [
        Figure(
            f"{run['command']}, fresh checkout, its environment made",
            f"{run['seconds'] / 60:.1f} min, {run['benchmarks']} benchmarks; the environment "
            f"{run['environment_s'] / 60:.1f} min before, {run['environment_bytes'] / 1e9:.2f} GB",
            "" if run["target_s"] is None else f"≤ {run['target_s'] / 60:g} min",
            None if run["target_s"] is None else run["seconds"] <= run["target_s"],
        )
        for run in content["runs"]
    ]


EXPERIMENT = Experiment(
    name="cost",
    title="what asv costs its user: two commands on a fresh checkout",
    trials=_trials,
    run=each(_timed),
    figures=_figures,
    summary=_summary,
    settings={"bench": ("", "")},
    stored="asv-cost.json",
)
