"""Calls that worker processes import by name: good, dying, hanging, greedy and raising ones."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def alive(pid):
    """Whether a process runs; asks /proc, as one that has ended may wait to be read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition, limit_s=10.0):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def square(x):
    return x * x


def own_pid():
    return os.getpid()


def kill_self(number):
    os.kill(os.getpid(), number)


def leave():
    os._exit(3)


def hang(path=None):
    if path is not None:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
        path.write_text(f"{os.getpid()} {child.pid}")
    time.sleep(300)


def hang_with_the_lock(path):
    """Have a child, and never let another thread of this process run."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    path.write_text(f"{os.getpid()} {child.pid}")
    return pow(3, 10**9)


def stop_while_sending():
    """Send half of the answer and stop, as a worker does that is suspended at the wrong moment."""
    from multiprocessing.connection import Connection

    def send(self, buf, write=os.write):
        write(self._handle, bytes(buf)[: len(buf) // 2])
        os.kill(os.getpid(), signal.SIGSTOP)

    Connection._send = send
    return "answer"


def stop_self(path):
    path.write_text(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)


def take(size):
    return len(bytearray(size))


def take_tensor(size):
    import torch

    return torch.ones(size, dtype=torch.uint8).numel()


def fail():
    raise ValueError("bad value")


def lambda_result():
    return lambda: 0


def fail_in_a_way_of_its_own():
    raise OwnError(1, 2)


class OwnError(Exception):
    """Cannot be made again from its pickle: its arguments are not those of its base."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def die_if_one(number):
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * number


def group_of(number):
    return os.getpid(), os.getpgrp()


def call_within(path):
    """Have a child hang in a process of its own, below this one."""
    from precision_eval.core.workers import call_isolated

    call_isolated(hang, path)


def is_imported(name):
    return name in sys.modules


def doubts_about_fresh_memory(mebibytes):
    """What a comparison says of calls that fill blocks of so many MiB, beside one of 256 KiB."""
    import torch

    from precision_eval.measure.latency import compare_latency

    def compared(size):
        found = compare_latency(
            {"none": lambda: torch.ones(1 << 16), "copies": lambda: torch.ones(size << 18)},
            baseline="none",
            budget_s=0.1,
        )
        return [doubt for doubt in found["copies"].doubts if doubt.startswith("fresh memory")]

    return [compared(size) for size in mebibytes]
