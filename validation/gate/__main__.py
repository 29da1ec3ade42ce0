"""``python -m validation.gate``: measure the sets that are missing, then print and write the rates."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def main() -> int:
    """Run the trials."""
    for name in _THREADS:
        os.environ.setdefault(name, "1")  # before numpy is loaded, here and in the interpreters that measure
    options = _parser().parse_args()
    from precision_eval.core.json_lines import TrialFile

    file = TrialFile(options.raw)
    if not options.report:
        _measure(file, options)
    here = _conditions(options)
    lines = [line for line in file.read() if line["conditions"] == here][: options.sets]
    if len(lines) < 2:
        described = ", ".join(f"{name} {value}" for name, value in here.items())
        print(f"{len(lines)} sets in {options.raw} of {described}; at least 2 are needed for a pair", file=sys.stderr)
        return 2
    _report(lines, options)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m validation.gate", description=__doc__)
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    parser.add_argument("--raw", type=Path, default=Path("runs/gate/sets.jsonl"), help="sets, one per line; resumed")
    parser.add_argument("--sets", type=int, default=24)
    parser.add_argument("--processes", type=int, default=150, help="per set")
    parser.add_argument("--budget", type=float, default=0.1, help="seconds of rounds per process and group of cells")
    parser.add_argument("--jobs", type=int, default=1, help="sets measured at a time")
    parser.add_argument("--slice-s", type=float, default=float("inf"), help="start no set that would end after this")
    parser.add_argument("--pairs", type=int, default=120, help="pairs of sets that are drawn")
    parser.add_argument("--tracked", type=int, default=0, help="also time the tracked cells in so many processes each")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    return parser


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return what an interpreter that measures is told."""
    return {"processes": options.processes, "budget_s": options.budget}


def _conditions(options: argparse.Namespace) -> dict[str, Any]:
    """Return what sets of a pair share: settings, processor and torch, so that no pair spans two machines."""
    from precision_eval.core.environment import cpu_model
    from validation.gate.cells import DESIGN

    return {**_settings(options), "design": DESIGN, "cpu": cpu_model(), "torch": metadata.version("torch")}


def _measure(file: Any, options: argparse.Namespace) -> None:
    """Measure missing sets, each in an interpreter of its own, and keep each as soon as it is whole."""
    known, here = file.keys(), _conditions(options)
    place = f"{options.processes}/{options.budget:g}/{here['design']}/{here['cpu']}/{here['torch']}"
    keys = {seed: f"set/{seed}/{place}" for seed in range(options.sets)}
    missing = [seed for seed, key in keys.items() if key not in known]
    started, longest_s = time.monotonic(), 0.0
    with ThreadPoolExecutor(options.jobs) as pool:
        while missing and time.monotonic() - started + longest_s < options.slice_s:
            batch, missing = missing[: options.jobs], missing[options.jobs :]
            before = time.monotonic()
            for seed, found in zip(batch, pool.map(lambda seed: _one_set(seed, options), batch), strict=True):
                file.append({"key": keys[seed], "conditions": here, **found})
            longest_s = max(longest_s, time.monotonic() - before)
            print(f"{options.sets - len(missing)} of {options.sets} sets, {longest_s:.0f} s each", flush=True)


def _one_set(seed: int, options: argparse.Namespace) -> dict[str, Any]:
    wanted = json.dumps({"seed": seed, **_settings(options)})
    command = [sys.executable, "-m", "validation.gate.measuring", wanted]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"set {seed} could not be measured; its message stands above; run again to go on")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _report(lines: list[dict[str, Any]], options: argparse.Namespace) -> None:
    from precision_eval.core.environment import collect
    from validation.gate import figures, simulated
    from validation.gate.rules import read_sets

    pairs = figures.drawn_pairs(len(lines), options.pairs)
    with tempfile.TemporaryDirectory() as folder:
        sets = read_sets(lines, Path(folder))
        rates = figures.all_figures(sets, len(lines), options.processes, pairs)
    made_up = simulated.figures()
    for one in [*rates, *made_up]:
        verdict = {None: "", True: "met", False: "MISSED"}[one.get("met")]
        interval = f"{100 * one['rate']:6.2f} % [{100 * one['low']:.2f}, {100 * one['high']:.2f}]"
        print(f"{one.get('rule', ''):48s} {one['what']:34s} {interval} {one.get('target', '')} {verdict}")
    if options.out is not None:
        content = {
            "conditions": {**_conditions(options), "sets": len(lines), "pairs": len(pairs)},
            "figures": rates,
            "simulated": made_up,
            "spreads": figures.spreads(lines),
            "tracked": _tracked(options),
            "environment": collect("cpu"),
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _tracked(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return what the tracked cells ask for; what an earlier report measured, where this one measures nothing."""
    from precision_eval.results.gate import Margins
    from precision_eval.studies.tracking import FULL
    from validation.gate import tracked

    if options.tracked:
        cells = tracked.measured(options.tracked, budget_s=FULL.options.budget_s)
        return tracked.figures(cells, margin=Margins().latency)
    earlier = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {}
    return list(earlier.get("tracked", []))


if __name__ == "__main__":
    sys.exit(main())
