"""Real model classes of transformers and diffusers, with the dtypes split as the systems split them, and no edits.

``ADAPTERS`` lists the entries; ``ADAPTED_CASES`` offers their tiny cases to a run that asks for them by name, and
``REAL_CASES`` models with their real weights. Listing them loads neither torch nor the libraries, which the extras
``zoo`` and ``whisper`` install, or a wheel by itself.
"""

from __future__ import annotations

from precision_eval.cases.adapters.base import Adapter
from precision_eval.cases.adapters.dia import DIA
from precision_eval.cases.adapters.listeners import LISTENER_CASES
from precision_eval.cases.adapters.svd import SVD_TIME_EMBED
from precision_eval.cases.adapters.t5 import T5_ENCODER
from precision_eval.cases.adapters.whisper import WHISPER_CASES
from precision_eval.cases.base import Case
from precision_eval.core.errors import entry_of

__all__ = ["ADAPTED_CASES", "ADAPTERS", "REAL_CASES", "Adapter", "adapter_by_id"]

ADAPTERS: tuple[Adapter, ...] = (DIA, T5_ENCODER, SVD_TIME_EMBED)
ADAPTED_CASES: tuple[Case, ...] = tuple(entry.case() for entry in ADAPTERS)
REAL_CASES: tuple[Case, ...] = (*WHISPER_CASES, *LISTENER_CASES)


def adapter_by_id(entry_id: str) -> Adapter:
    """Look an entry up."""
    return entry_of("zoo entry", entry_id, ADAPTERS)
