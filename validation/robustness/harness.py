"""Runs a scenario with real processes and judges what became of it.

After every command the records of before must be there byte for byte, every file of tokens and audio must
be whole, and no worker may be left over. At the end every planned cell must stand with a status, what did not pass with
a reason, what no fault hit must have passed, and no cell may have been measured twice without need.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import soundfile

import precision_eval
from precision_eval.cases.voice.codec import HOP_SAMPLES
from precision_eval.core.cells import Options
from precision_eval.core.files import PARTIAL
from precision_eval.run.plan import Selection, make_plan
from validation.frame import Data
from validation.robustness.injector import Fault
from validation.robustness.scenarios import DAMAGES, Scenario, Step

_COMMAND_LIMIT_S = 280.0
_ROOT = str(Path(precision_eval.__file__).parents[1])
"""Where this package was imported from, so that the run imports the same."""
_STAYS = "memory_limit"
"""Kind of fault whose status, out of memory, stands; all else is to pass in the end."""

_FEEDS: Mapping[str, tuple[str, ...]] = {
    "trace": ("drift", "memory", "latency"),
    "streams": ("divergence",),
    "synthesis": ("audio",),
}
"""What takes over the status of a stage."""

_SHIM = """import sys
sys.path[:0] = {path!r}
from validation.robustness.injector import arm
arm({plan!r})
{extra}
"""


def is_kept(line: Data) -> bool:
    """Say whether a fault acted and everything promised held."""
    return bool(line["acted"] and line["ended"] and not (line["lost"] or line["remeasured"] or line["problems"]))


def play(
    scenario: Scenario, folder: Path, *, extra_shim: str = "", stopped: threading.Event | None = None
) -> list[Data]:
    """Give the scenario's command step by step and judge; a line per fault at a stage. `stopped` ends it early."""
    return _Play(scenario, folder, extra_shim, stopped or threading.Event()).to_the_end()


class _Play:
    """State of one scenario."""

    def __init__(self, scenario: Scenario, folder: Path, extra_shim: str, stopped: threading.Event) -> None:
        self.scenario = scenario
        self.stopped = stopped
        self.folder = folder
        self.run_dir = folder / "run"
        self.markers = folder / "markers"
        self.markers.mkdir(parents=True)
        self.shim = folder / "shim"
        self.shim.mkdir()
        plan = str(folder / "armed.json")
        (self.shim / "sitecustomize.py").write_text(_SHIM.format(path=[_ROOT], plan=plan, extra=extra_shim))
        self.problems: list[str] = []
        self.lost = 0
        self.seen: dict[str, str] = {}
        self.exit_code: int | None = None

    def to_the_end(self) -> list[Data]:
        for number, step in enumerate(self.scenario.steps, start=1):
            self._give(step, f"{self.scenario.name} {number}/{len(self.scenario.steps)}")
        shared: Data = {"scenario": self.scenario.name, "lost": self.lost, "ended": self._ended()}
        shared |= {"remeasured": self._remeasured(), "problems": self.problems}
        lines = []
        for key in dict.fromkeys(self.scenario.keys):
            kind, _, stage = key.partition("/")
            seen = {"acted": key in self.seen, "seen": self.seen.get(key, "")}
            lines.append({"key": key, "kind": kind, "stage": stage, **seen, **shared})
        return lines

    def _give(self, step: Step, where: str) -> None:
        """Damage, arm, run, and check what must hold after every command."""
        if step.damage is not None:
            DAMAGES[step.damage](self.run_dir)
            self.seen[f"{step.damage}/between"] = "done"
        already_broken = self._broken_files()
        before = self._whole_lines()
        acted = set(self.markers.iterdir())
        command = self.scenario.command(step, self.run_dir)
        armed = {"faults": [asdict(fault) for fault in self.scenario.armed(step)], "markers": str(self.markers)}
        (self.folder / "armed.json").write_text(json.dumps(armed | {"command": command}))
        self.exit_code, output = self._run(command)
        if self.exit_code not in step.exit_codes:
            ending = " ".join(output.split())[-600:]
            self.problems.append(f"{where} ended with code {self.exit_code}, not {step.exit_codes}: {ending}")
        after = self._whole_lines()
        if after[: len(before)] != before:
            self.lost += sum((Counter(before) - Counter(after)).values()) or 1
        for fault in self.scenario.armed(step):
            if fault.marker(self.markers) in set(self.markers.iterdir()) - acted:
                self._note(fault, step)
        broken = [name for name in self._broken_files() if name not in already_broken]
        self.problems += [f"{where}: {problem}" for problem in (*broken, *self._left_over())]

    def _run(self, command: Sequence[str]) -> tuple[int | None, str]:
        """Run the command line as a user would, in a session of its own."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(self.shim), _ROOT])}
        words = [sys.executable, "-m", "precision_eval.cli", *command]
        piped: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = subprocess.Popen(words, env=environment, start_new_session=True, **piped)
        end_s = time.monotonic() + _COMMAND_LIMIT_S
        while True:
            try:
                output, _ = process.communicate(timeout=0.5)
                return process.returncode, output
            except subprocess.TimeoutExpired:
                if not self.stopped.is_set() and time.monotonic() < end_s:
                    continue
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                if self.stopped.is_set():
                    raise KeyboardInterrupt from None
                return None, "it did not end"

    def _note(self, fault: Fault, step: Step) -> None:
        """Remember what the hit cell's record said after the command in which the fault acted."""
        if fault is step.ending:
            self.seen[fault.key] = f"exit {self.exit_code}"
        elif fault.kind == "second_run":
            said = fault.marker(self.markers).read_text().splitlines()[-1]
            self.seen[fault.key] = f"exit {said.split()[0]}"
            if not (said.startswith("2 ") and "another run is under way" in said):
                self.problems.append(f"a second run at the same time ended with {said}")
        else:
            hit = [
                record["status"]
                for record in self._latest().values()
                if record["measure"] == fault.stage and _hits(fault, record)
            ]
            self.seen[fault.key] = ", ".join(dict.fromkeys(hit))

    def _whole_lines(self) -> list[bytes]:
        """Return the lines of the records file that are strict JSON objects."""
        path = self.run_dir / "records.jsonl"
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        return [line for line in lines if _is_object(line)]

    def _latest(self) -> dict[str, dict[str, Any]]:
        return {record["cell"]: record for record in map(json.loads, self._whole_lines())}

    def _broken_files(self) -> list[str]:
        """Name the files of tokens, logits and audio that are not whole under their own names."""
        files = [*self.run_dir.glob("streams/[!.]*"), *self.run_dir.glob("audio/[!.]*")]
        return [f"{path.name} is not whole" for path in files if not _is_whole(path)]

    def _left_over(self) -> list[str]:
        """Name the workers that a fault acted in and that still live."""
        pids = {
            int(line.split()[0])
            for marker in self.markers.iterdir()
            for line in marker.read_text().splitlines()
            if len(line.split()) == 1
        }
        deadline = time.monotonic() + 10.0
        while any(map(_lives, pids)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return [f"process {pid} was left over" for pid in sorted(pids) if _lives(pid)]

    def _ended(self) -> bool:
        """Check the end: exit code, report, a status for every planned cell, a reason where one did not pass."""
        latest = self._latest()
        planned = self._planned()
        for cell in planned:
            if cell not in latest:
                self.problems.append(f"{cell} has no record")
                continue
            record, allowed = latest[cell], self._allowed(latest[cell])
            if record["status"] not in allowed:
                self.problems.append(f"{cell} is {record['status']}, not {allowed}: {record['reason']}")
            if record["status"] != "passed" and not record["reason"]:
                self.problems.append(f"{cell} is {record['status']} without a reason")
            if not 0 <= record["wall_s"] < _COMMAND_LIMIT_S:
                self.problems.append(f"{cell} took {record['wall_s']} s")
        self.problems += self._broken_files()
        self.problems += [f"{path.name} was left" for path in self.run_dir.rglob(f"*{PARTIAL}")]
        return self.exit_code == 0 and (self.run_dir / "report.md").is_file() and set(planned) <= set(latest)

    def _allowed(self, record: Mapping[str, Any]) -> set[str]:
        """Return the statuses that a cell may have at the end."""
        hit = [
            fault.stage == record["measure"]
            for fault in self.scenario.faults
            if fault.kind == _STAYS and _reaches(fault, record)
        ]
        if not hit:
            return {"passed"}
        # what feeds these was damaged and made anew; a group is timed anew once a fix is added
        again = any(hit) and record["measure"] in ("divergence", "audio", "latency")
        return {"out_of_memory", "passed"} if again else {"out_of_memory"}

    def _planned(self) -> list[str]:
        options = dict(zip(self.scenario.arguments[::2], self.scenario.arguments[1::2], strict=True))
        plan = make_plan(
            Selection(
                cases=(options["--case"],),
                fixes=(*self.scenario.fixes, *self.scenario.later_fixes),
                measures=tuple(options.get("--measure", "*").split(",")),
                sizes=(options["--size"],) if "--size" in options else None,
                options=Options(),
            )
        )
        return [cell.fix_id(fix) for cell in plan.cells for fix in cell.fixes]

    def _remeasured(self) -> int:
        """Count the cells that were measured twice although they had passed and their files were never touched."""
        passed = Counter(
            record["cell"] for record in map(json.loads, set(self._whole_lines())) if record["status"] == "passed"
        )
        excused = ("#streams", "#synthesis", "#latency")  # damaged files; a group is timed together again
        return sum(count > 1 and not cell.endswith(excused) for cell, count in passed.items())


def _hits(fault: Fault, record: Mapping[str, Any]) -> bool:
    return fnmatch(record["fix"], fault.fix) and fnmatch(record["case"], fault.case)


def _reaches(fault: Fault, record: Mapping[str, Any]) -> bool:
    """Say whether a fault hits a record's cell or one that comes before it."""
    return _hits(fault, record) and (
        record["measure"] == fault.stage or record["measure"] in _FEEDS.get(fault.stage, ())
    )


def _is_whole(path: Path) -> bool:
    """Say whether an array or a WAV can be read to its end; a WAV's length must be the one of its tokens."""
    try:
        if path.suffix == ".wav":
            return len(soundfile.read(path)[0]) == HOP_SAMPLES * len(np.load(path.with_suffix(".npy")))
        with path.open("rb") as file:
            found = np.load(file, allow_pickle=False)
            return bool((found["logits"] if path.suffix == ".npz" else found).size)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, soundfile.LibsndfileError):
        return False


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _lives(pid: int) -> bool:
    """Say whether a process is there and no zombie."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
