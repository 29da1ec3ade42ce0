"""Faults put into the processes of a real run, at a stage for certain, from outside the package.

Conventions: a run is started with a ``sitecustomize.py`` on its ``PYTHONPATH`` that calls :func:`arm` in every Python
process of it: the main process, the fork server and, through it, every worker. What is armed is read from a JSON file;
the run itself knows nothing of it. A fault acts inside the process that reaches its stage, so that it cannot come too
early or too late, and leaves a marker file that says where it acted. A fault that acts *once* is spent then; the others
act whenever the stage is reached.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

WORKER_STAGES: tuple[str, ...] = (
    *("trace", "drift", "memory", "latency"),
    *("teacher_forced_drift", "streams", "divergence", "synthesis", "audio"),
)
"""Stages that run in workers: the measures."""

MAIN_STAGES: tuple[str, ...] = ("planning", "records", "report")
"""Stages of the main process."""

_SIGNALS = {"kill_main": signal.SIGKILL, "interrupt": signal.SIGINT, "terminate": signal.SIGTERM}
_CLOCK_STEP_S = 3600.0
_MOST_GIB = 2**16


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault at one stage."""

    kind: str
    stage: str
    fix: str = "*"
    case: str = "*"
    cells: str = "any"
    once: bool = True

    @property
    def key(self) -> str:
        """Return ``kind/stage``."""
        return f"{self.kind}/{self.stage}"

    def marker(self, folder: Path) -> Path:
        """Return the file that says that it has acted."""
        return folder / self.key.replace("/", "@")


@dataclass(frozen=True)
class _Armed:
    """What this process has to do."""

    faults: tuple[Fault, ...]
    markers: Path
    command: tuple[str, ...]

    def due(self, stage: str, fixes: tuple[str, ...] = ("",), case: str = "") -> Iterator[Fault]:
        """Yield the faults that act now, each marked as having acted; one that ends the process hides the rest."""
        return (fault for fault in self.faults if self._fits(fault, stage, fixes, case) and self._mark(fault))

    def _fits(self, fault: Fault, stage: str, fixes: tuple[str, ...], case: str) -> bool:
        size = "group" if len(fixes) > 1 else "single"
        return (
            fault.stage == stage
            and fault.cells in ("any", size)
            and fnmatch(case, fault.case)
            and any(fnmatch(fix, fault.fix) for fix in fixes)
        )

    def _mark(self, fault: Fault) -> bool:
        """Leave the marker; False where the fault was spent before."""
        path = fault.marker(self.markers)
        try:
            path.open("x").close()
        except FileExistsError:
            if fault.once:
                return False
        with path.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return True


def arm(plan: str) -> None:
    """Arm this process; called by ``sitecustomize`` before anything else runs."""
    read = json.loads(Path(plan).read_text(encoding="utf-8"))
    armed = _Armed(tuple(Fault(**fault) for fault in read["faults"]), Path(read["markers"]), tuple(read["command"]))
    if any(fault.kind == "clock_step" for fault in armed.faults):
        step_the_clock()
    if "precision_eval.cli" in sys.orig_argv:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell hands it down ignored
        _arm_main(armed)
    elif any("multiprocessing" in argument for argument in sys.orig_argv):
        _arm_worker(armed)


def _arm_worker(armed: _Armed) -> None:
    from precision_eval.measure.registry import Measure

    measure = Measure.run

    def run(self: Measure, cell: Any, run_dir: Path) -> Any:
        for fault in armed.due(self.name, cell.fixes, cell.case):
            _act(fault, run_dir, armed)
        return measure(self, cell, run_dir)

    Measure.run = run  # type: ignore[method-assign]


def _act(fault: Fault, run_dir: Path, armed: _Armed) -> None:
    """Do to this worker, to its parent or to the run's folder what a fault says."""
    if fault.kind in _SIGNALS:
        parent = multiprocessing.parent_process()
        assert parent is not None
        os.kill(parent.pid or 0, _SIGNALS[fault.kind])
        time.sleep(120)  # until the end of the parent ends this worker too
    actions: dict[str, Callable[[], None]] = {
        "kill_worker": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "stop_worker": lambda: os.kill(os.getpid(), signal.SIGSTOP),
        "memory_limit": _reach_the_memory_limit,
        "full_disk": lambda: _fill_the_disk(0),
        "half_written": _die_while_writing,
        "deleted_logs": lambda: shutil.rmtree(run_dir / "logs"),
        "second_run": lambda: _run_again(fault, armed),
        "clock_step": lambda: None,  # steps all the time, in every process
    }
    actions[fault.kind]()


def _reach_the_memory_limit() -> None:
    """Map memory until the worker's own limit refuses it; nothing is touched, so the machine does not notice."""
    import torch

    held = []
    for _ in range(_MOST_GIB):
        held.append(torch.empty(2**30, dtype=torch.uint8))
    raise MemoryError(f"no limit was met in {_MOST_GIB} GiB")


def _fill_the_disk(free_bytes: int) -> None:
    """Let no file of this process grow beyond a size; writing past it fails as on a full disk (EFBIG)."""
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (free_bytes, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def _die_while_writing() -> None:
    """Be killed once half of the next array or of the next block of samples has been written."""
    import numpy as np
    import soundfile

    def half(save: Callable[..., Any]) -> Callable[..., None]:
        def write(file: Any, *arrays: Any, **named: Any) -> None:
            whole = io.BytesIO()
            save(whole, *arrays, **named)
            content = whole.getvalue()[: len(whole.getvalue()) // 2]
            if hasattr(file, "write"):
                file.write(content)
                file.flush()
            else:
                Path(file).write_bytes(content)
            os.kill(os.getpid(), signal.SIGKILL)

        return write

    write_samples = soundfile.SoundFile.write

    def write(self: Any, samples: Any) -> None:
        write_samples(self, samples[: len(samples) // 2])
        self.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    np.save, np.savez, soundfile.SoundFile.write = half(np.save), half(np.savez), write


def _run_again(fault: Fault, armed: _Armed) -> None:
    """Give the same command while the run is under way, and note how it ended."""
    done = subprocess.run(
        [sys.executable, "-m", "precision_eval.cli", *armed.command], capture_output=True, text=True, check=False
    )
    with fault.marker(armed.markers).open("a") as file:
        file.write(f"{done.returncode} {done.stderr.strip()}\n")


def _arm_main(armed: _Armed) -> None:
    """Reach planning, the writing of records and the writing of the report."""
    from precision_eval.report import tables
    from precision_eval.run import plan

    make_plan, write_csv, write = plan.make_plan, tables.write_csv, os.write

    def planning(*arguments: Any, **named: Any) -> Any:
        made = make_plan(*arguments, **named)
        for fault in armed.due("planning"):
            _act_here(fault)
        return made

    def writing(descriptor: int, block: bytes) -> int:
        due = list(armed.due("records")) if block.startswith(b'{"cell":') else []
        for fault in due:
            if fault.kind == "kill_main":
                write(descriptor, block[: len(block) // 2])
            elif fault.kind == "full_disk":
                _fill_the_disk(os.fstat(descriptor).st_size + len(block) // 2)
                return write(descriptor, block)
        written = write(descriptor, block)
        for fault in due:
            _act_here(fault)
        return written

    def reporting(run: Any, path: Path) -> Path:
        due = list(armed.due("report"))
        if any(fault.kind == "full_disk" for fault in due):
            _fill_the_disk(0)
        written = write_csv(run, path)
        for fault in due:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
            _act_here(fault)
        return written

    plan.make_plan, tables.write_csv = planning, reporting
    os.write = writing  # type: ignore[assignment]


def _act_here(fault: Fault) -> None:
    """Send a signal to this process, or leave it no disk from now on."""
    if fault.kind == "full_disk":
        _fill_the_disk(0)
    else:
        os.kill(os.getpid(), _SIGNALS[fault.kind])


def step_the_clock() -> None:
    """Let the wall clock jump an hour ahead and an hour back, at every look at it."""
    import datetime

    real, now, looks = time.time, datetime.datetime, iter(range(2**62))

    def step_s() -> float:
        return _CLOCK_STEP_S if next(looks) % 2 else -_CLOCK_STEP_S

    class Stepping(now):  # type: ignore[misc, valid-type]
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return now.now(tz) + datetime.timedelta(seconds=step_s())

    time.time = lambda: real() + step_s()
    datetime.datetime = Stepping  # type: ignore[misc]
