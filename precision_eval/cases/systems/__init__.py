"""The systems that had the bug, each in the state in which it raises; listing them loads no torch."""

from __future__ import annotations

from precision_eval.cases.base import Case, Workload
from precision_eval.cases.systems.attention import ATTENTION_DECODE, ATTENTION_PREFILL
from precision_eval.cases.systems.cogvideo_t5 import COGVIDEO_T5_ENCODER, COGVIDEO_T5_ENCODER_STOCK
from precision_eval.cases.systems.dia import DIA_DECODE, DIA_DECODE_PR45, DIA_ENCODE
from precision_eval.cases.systems.imaginairy import IMAGINAIRY_TIME_EMBED, IMAGINAIRY_TIME_EMBED_CAST_FIRST
from precision_eval.cases.systems.metavoice import (
    METAVOICE_DECODE,
    METAVOICE_DECODE_FLOAT32,
    METAVOICE_DECODE_SLICE,
    METAVOICE_PREFILL,
    METAVOICE_PREFILL_FLOAT32,
)
from precision_eval.cases.systems.metavoice_t4 import METAVOICE_T4
from precision_eval.cases.systems.voice import VOICE
from precision_eval.core.errors import unknown_name

__all__ = ["WORKLOADS", "Case", "Workload", "all_workloads", "workload_by_id"]

WORKLOADS: tuple[Workload, ...] = (
    ATTENTION_DECODE,
    ATTENTION_PREFILL,
    VOICE,
    METAVOICE_DECODE,
    METAVOICE_PREFILL,
    METAVOICE_DECODE_SLICE,
    METAVOICE_DECODE_FLOAT32,
    METAVOICE_PREFILL_FLOAT32,
    DIA_DECODE,
    DIA_DECODE_PR45,
    DIA_ENCODE,
    IMAGINAIRY_TIME_EMBED,
    IMAGINAIRY_TIME_EMBED_CAST_FIRST,
    COGVIDEO_T5_ENCODER,
    COGVIDEO_T5_ENCODER_STOCK,
    METAVOICE_T4,
)


def all_workloads() -> tuple[Workload, ...]:
    """Return ``WORKLOADS`` and, after them, the tiny cases of the zoo: real classes of other libraries."""
    from precision_eval.cases.adapters import ZOO_WORKLOADS  # which builds on this package

    return (*WORKLOADS, *ZOO_WORKLOADS)


def workload_by_id(workload_id: str) -> Workload:
    """Look a workload up.

    Parameters
    ----------
    workload_id : str
        One of the ids in ``WORKLOADS`` or of the zoo.

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
    for workload in all_workloads():
        if workload.id == workload_id:
            return workload
    raise unknown_name("workload", workload_id, (workload.id for workload in all_workloads()))
