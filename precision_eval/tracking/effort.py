"""How much is measured: :data:`FULL` for a history, :data:`QUICK` to see that everything runs.

Conventions: seconds. Quick figures are no data: fewer processes, shorter streams, and tiny sizes where there are any.
"""

from __future__ import annotations

from dataclasses import dataclass

from precision_eval.experiment.cells import Options

DEVICE = "cpu"
THREADS = 1
"""Intra-op threads: what a history needs is the same every time, and a runner's cores are not its own."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Sizes of the measuring.

    Attributes
    ----------
    name : str
        For messages and file names.
    options : Options
        Of the cells: streams, steps and minutes of the voice, processes of the paired latency, seed. Its ``budget_s``
        is the time of one process's rounds.
    tiny : bool
        Measure the size ``tiny`` in place of the one asked for, where the workload has it.
    compiled_fixes : tuple of str or None
        Fixes that are measured compiled; None for all.
    limit_s : float
        Longest that one fix's measurement may take in its process.
    """

    name: str
    options: Options
    tiny: bool = False
    compiled_fixes: tuple[str, ...] | None = None
    limit_s: float = 240.0


FULL = Effort(name="full", options=Options(minutes=1 / 6, streams=4, steps=100, budget_s=0.3, processes=3))
QUICK = Effort(
    name="quick",
    options=Options(minutes=1 / 60, streams=1, steps=10, budget_s=0.02, processes=1),
    tiny=True,
    compiled_fixes=("as_shipped", "full_float32"),
)
