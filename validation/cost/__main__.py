"""``python -m validation.cost --out FILE.json``: run asv's commands on fresh checkouts, and keep how long each took.

What the file holds of this commit and machine is not run again, so the same command goes on after an interruption.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from validation.cost import TIMED

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Time what the file lacks; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m validation.cost", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--bench", metavar="REGEX", help="only these benchmarks, to try it out; then nothing is judged")
    options = parser.parse_args(arguments)
    from precision_eval.core.environment import collect

    commit = _git("rev-parse", "HEAD")
    environment = {**(found := collect("cpu")), "package": {**found["package"], "git_commit": commit}}
    runs = _stored(options.out, parser)
    for timed in TIMED:
        words = (*timed.words, *(("--bench", options.bench) if options.bench else ()))
        command = " ".join(("asv", *words))
        if any(one["command"] == command and one["environment"] == environment for one in runs):
            continue
        print(f"{command}, on a fresh checkout of {commit[:8]}", flush=True)
        run = _timed(words, commit)
        if run is None:
            print(f"{command} failed, as it says above; nothing of it is kept", file=sys.stderr)
            return 1
        target_s = None if options.bench else timed.target_s
        runs = [one for one in runs if one["command"] != command]
        runs.append({"command": command, "target_s": target_s, **run, "environment": environment})
        _store(options.out, runs)
        print(f"{command}: {run['seconds']:.0f} s, {run['benchmarks']} benchmarks", flush=True)
    return 0


def _timed(words: Sequence[str], commit: str) -> dict[str, Any] | None:
    """Run one of asv's commands on a checkout of its own; None where it fails."""
    from tools.torch_versions.environments import disk_bytes

    with tempfile.TemporaryDirectory(prefix="asv-cost-") as folder:
        clone = Path(folder) / "checkout"
        _git("clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone))
        _git("-C", str(clone), "checkout", "--quiet", "--detach", commit)
        started = time.monotonic()
        for one in (("machine", "--yes"), words):
            if subprocess.run([sys.executable, "-m", "asv", *one], cwd=clone, check=False).returncode:
                return None
        seconds = time.monotonic() - started
        return {
            "seconds": round(seconds, 1),
            "benchmarks": _benchmarks(clone / ".asv" / "results"),
            "environment_bytes": disk_bytes(clone / ".asv" / "env"),
        }


def _benchmarks(results: Path) -> int:
    """Count the benchmarks that have a result, or were found not to apply."""
    names: set[str] = set()
    for path in results.glob("*/*.json"):
        if path.name != "machine.json":
            names |= set(json.loads(path.read_text(encoding="utf-8"))["results"])
    return len(names)


def _stored(path: Path, parser: argparse.ArgumentParser) -> list[dict[str, Any]]:
    """Return the runs that a file holds, or end with one line and exit code 2."""
    if not path.exists():
        return []
    try:
        runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
        return [dict(one) for one in runs if one["command"] and one["environment"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        parser.exit(2, f"{parser.prog}: {path} is no file of asv's costs ({error!r}); give another --out\n")


def _store(path: Path, runs: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({"runs": list(runs)}, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    partial.replace(path)


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
