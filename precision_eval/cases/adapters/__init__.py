"""Real model classes of transformers and diffusers, with the dtypes split as the systems split them, and no edits.

``ADAPTED_CASES`` are tiny ones with random weights, for a run that asks for them by name; ``REAL_CASES`` have their
real weights. Listing them loads neither torch nor the libraries, which the extras ``zoo`` and ``whisper`` install, or a
wheel by itself.
"""

from __future__ import annotations

from precision_eval.cases.adapters.dia import DIA
from precision_eval.cases.adapters.svd import SVD_TIME_EMBED
from precision_eval.cases.adapters.t5 import T5_ENCODER
from precision_eval.cases.adapters.whisper import WHISPER_CASES
from precision_eval.cases.base import Case

__all__ = ["ADAPTED_CASES", "REAL_CASES"]

ADAPTED_CASES: tuple[Case, ...] = (DIA, T5_ENCODER, SVD_TIME_EMBED)
REAL_CASES: tuple[Case, ...] = WHISPER_CASES
