"""A competitor for the processor: bursts of work over 8 MiB of memory, with pauses, until its parent is gone.

Conventions: run as ``python -m validation.timing.burst SEED PARENT_PID``; prints ``ready`` once. A burst
lasts 1–40 ms of wall-clock time and a pause 1–60 ms, both uniform and seeded, so each competitor wants 20.5 / 51 =
0.40 of a core, and gets less where it has to share. The array exceeds a core's second-level cache, so a burst also
displaces what the measured process had there. It is pinned to nothing.
"""

from __future__ import annotations

import os
import random
import sys
import time

BUSY_S = (0.001, 0.040)
PAUSE_S = (0.001, 0.060)
_VALUES = 1 << 20  # float64: 8 MiB


def compete(seed: int, parent: int) -> None:
    """Burst and pause while `parent` is this process's parent; return within one burst and pause of its end."""
    import numpy as np

    rng = random.Random(seed)
    array = np.ones(_VALUES)
    print("ready", flush=True)
    while os.getppid() == parent:
        end = time.perf_counter() + rng.uniform(*BUSY_S)
        while time.perf_counter() < end:
            array += 1.0
        time.sleep(rng.uniform(*PAUSE_S))


if __name__ == "__main__":
    compete(int(sys.argv[1]), int(sys.argv[2]))
