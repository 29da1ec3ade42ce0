"""Calls that worker processes import by name: good, dying, hanging, greedy and raising ones."""

from __future__ import annotations

import os
import subprocess
import sys
import time


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


def take(size):
    return len(bytearray(size))


def take_tensor(size):
    import torch

    return torch.ones(size, dtype=torch.uint8).numel()


def fail():
    raise ValueError("bad value")


def lambda_result():
    return lambda: 0
