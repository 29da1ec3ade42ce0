"""The systems that had the bug, each in the state in which it raises; listing them loads no torch."""

from __future__ import annotations

from precision_eval.errors import unknown_name
from precision_eval.workloads.attention import ATTENTION_DECODE, ATTENTION_PREFILL
from precision_eval.workloads.base import Case, Workload
from precision_eval.workloads.voice import VOICE

__all__ = ["WORKLOADS", "Case", "Workload", "workload_by_id"]

WORKLOADS: tuple[Workload, ...] = (
    ATTENTION_DECODE,
    ATTENTION_PREFILL,
    VOICE,
)


def workload_by_id(workload_id: str) -> Workload:
    """Look a workload up.

    Parameters
    ----------
    workload_id : str
        One of the ids in ``WORKLOADS``.

    Returns
    -------
    Workload

    Raises
    ------
    UnknownNameError
        No workload has that id; names the nearest ones.
    """
    for workload in WORKLOADS:
        if workload.id == workload_id:
            return workload
    raise unknown_name("workload", workload_id, (workload.id for workload in WORKLOADS))
