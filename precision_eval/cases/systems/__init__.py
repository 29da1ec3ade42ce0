"""The systems that had the bug, each in the state in which it raises; listing them loads no torch."""

from __future__ import annotations

from precision_eval.cases.base import Case
from precision_eval.cases.own import case_of
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
    METAVOICE_T4,
)
from precision_eval.cases.systems.voice import VOICE
from precision_eval.core.errors import entry_of
from precision_eval.core.targets import is_target

__all__ = ["CASES", "Case", "case_by_id"]

CASES: tuple[Case, ...] = (
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


def case_by_id(case_id: str) -> Case:
    """Look a case up.

    Parameters
    ----------
    case_id : str
        One of the ids in ``CASES``, or where a factory of one's own is written, ``file.py:name``.
    """
    if is_target(case_id):
        return case_of(case_id)
    return entry_of("case", case_id, CASES)
