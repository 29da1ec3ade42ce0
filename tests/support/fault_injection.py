"""Faults put into the processes of a real run, at a stage for certain, from outside the package.

A run is started with a ``sitecustomize.py`` on its path that calls :func:`arm` in every Python process of it. A fault
acts inside the process that reaches its stage, so it cannot come too early or too late, and leaves a marker file.
"""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import precision_eval

ROOT = str(Path(precision_eval.__file__).parents[1])
SHIM = """import sys
sys.path[:0] = {path!r}
from tests.support.fault_injection import arm
arm({plan!r})
{extra}
"""
SIGNALS = {"kill_main": signal.SIGKILL, "interrupt": signal.SIGINT, "terminate": signal.SIGTERM}
EXIT_CODES = {"kill_main": -9, "interrupt": 130, "terminate": 143, "full_disk": 2}
LIMIT_S = 280.0


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault; its stage is a measure, or ``records`` for the writing of them by the main process."""

    kind: str
    stage: str
    fix: str = ""
    once: bool = True

    @property
    def key(self):
        return f"{self.kind}@{self.stage}"


def arm(plan):
    """Arm this process; ``sitecustomize`` calls it before anything else runs."""
    armed = json.loads(Path(plan).read_text(encoding="utf-8"))
    faults, markers = [Fault(**fault) for fault in armed["faults"]], Path(armed["markers"])

    def due(stage, fixes=("",)):
        for fault in faults:
            spent = fault.once and (markers / fault.key).exists()
            if fault.stage == stage and (not fault.fix or fault.fix in fixes) and not spent:
                (markers / fault.key).touch()
                yield fault

    if "precision_eval" in sys.orig_argv:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell hands it down ignored
        _arm_main(due)
    elif any("multiprocessing" in argument for argument in sys.orig_argv):
        _arm_worker(due)


def _arm_worker(due):
    from precision_eval.measure.registry import Measure

    measure = Measure.run

    def run(self, cell, run_dir):
        for fault in due(self.name, cell.fixes):
            _act(fault)
        return measure(self, cell, run_dir)

    Measure.run = run


def _act(fault):
    if fault.kind in SIGNALS:
        os.kill(multiprocessing.parent_process().pid, SIGNALS[fault.kind])
        time.sleep(120)  # until the end of the parent ends this worker too
    elif fault.kind == "kill_worker":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.kind == "stop_worker":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault.kind == "memory_limit":
        import torch

        held = []
        while True:
            held.append(torch.empty(2**30, dtype=torch.uint8))  # untouched, so the machine does not notice
    else:
        _fill_the_disk(0)


def _fill_the_disk(free_bytes):
    """Let no file of this process grow beyond a size; writing past it fails as on a full disk."""
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (free_bytes, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def _arm_main(due):
    """End the main process, or fill the disk, in the middle of a record."""
    write = os.write

    def writing(descriptor, block):
        for fault in due("records") if block.startswith(b'{"cell":') else ():
            half = len(block) // 2
            if fault.kind == "full_disk":
                _fill_the_disk(os.fstat(descriptor).st_size + half)
            else:
                write(descriptor, block[:half])
                os.kill(os.getpid(), SIGNALS[fault.kind])
        return write(descriptor, block)

    os.write = writing


class FaultyRun:
    """A run folder and one command, given again and again with other faults armed."""

    def __init__(self, folder, arguments, *, extra=""):
        self.run_dir, self.markers, self.plan = folder / "run", folder / "markers", folder / "armed.json"
        self.arguments, self.shim = arguments, folder / "shim"
        for made in (self.markers, self.shim):
            made.mkdir(parents=True)
        shim = SHIM.format(path=[ROOT], plan=str(self.plan), extra=extra)
        (self.shim / "sitecustomize.py").write_text(shim, encoding="utf-8")

    def give(self, *faults, more=()):
        """Give the command; returns its exit code, what it printed, and how many records it lost."""
        before = self.lines()
        self.plan.write_text(json.dumps({"faults": [*map(asdict, faults)], "markers": str(self.markers)}))
        words = [sys.executable, "-m", "precision_eval", "run", *self.arguments, *more, "--out", str(self.run_dir)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(self.shim), ROOT])}
        done = subprocess.run(
            words, env=environment, start_new_session=True, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        lost = 0 if self.lines()[: len(before)] == before else len(set(before) - set(self.lines())) or 1
        return done.returncode, done.stdout + done.stderr, lost

    def lines(self):
        path = self.run_dir / "records.jsonl"
        return [line for line in path.read_bytes().split(b"\n") if _is_object(line)] if path.exists() else []

    def latest(self):
        return {record["cell"]: record for record in map(json.loads, self.lines())}

    def acted(self, fault):
        return (self.markers / fault.key).exists()


def _is_object(line):
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
