"""Measures that do what their fix is called, for tests of the runner; imported by workers."""

import os
import signal
import time

from precision_eval.core.cells import passed
from precision_eval.core.errors import UnsupportedError
from precision_eval.core.files import described


def act(fix, run_dir):
    """Do to this process what a fix's name says."""
    if fix == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fix == "hangs":
        time.sleep(300)
    elif fix == "takes":
        raise MemoryError
    elif fix == "unsupported":
        raise UnsupportedError("no such format here")
    elif fix == "raises":
        raise RuntimeError("Expected query, key, and value to have the same dtype")
    elif fix == "dies_once" and not (run_dir / "died").exists():
        (run_dir / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    elif fix == "waits":
        time.sleep(3)
    elif fix == "writes":
        (run_dir / "made.txt").write_text("made")
        return passed(fix, {"files": described(run_dir, run_dir / "made.txt")})
    return passed(fix, {"value": float("nan") if fix == "nan" else 1.0, "pid": os.getpid(), "cores": _cores()})


def _cores():
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def first(cell, run_dir):
    """Act, in any process."""
    with (run_dir / "ran.txt").open("a") as file:
        file.write(f"{cell.id} {time.monotonic()}\n")
    time.sleep(0.05)
    return [act(fix, run_dir) for fix in cell.fixes]


def group(cell, run_dir):
    """Measure several fixes in one process; here only, ``weak`` is lost and ``rough`` raises."""
    with (run_dir / "ran.txt").open("a") as file:
        file.write(f"{cell.id} {time.monotonic()}\n")
    if "weak" in cell.fixes:
        os.kill(os.getpid(), signal.SIGKILL)
    if "rough" in cell.fixes:
        raise RuntimeError("too rough")
    return [passed(fix, {"together": len(cell.fixes)}) for fix in cell.fixes]
