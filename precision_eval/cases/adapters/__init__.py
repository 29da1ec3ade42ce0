"""Real model classes of transformers and diffusers, with the dtypes split as the systems split them, and no edits.

``ZOO`` lists the entries; ``ZOO_WORKLOADS`` offers their tiny cases to a run that asks for them by name. Listing them
loads neither torch nor the libraries, which the extra ``zoo`` installs.
"""

from __future__ import annotations

from precision_eval.cases.adapters.base import ZooEntry, keeping_float64
from precision_eval.cases.adapters.dia import DIA
from precision_eval.cases.adapters.svd import SVD_TIME_EMBED
from precision_eval.cases.adapters.t5 import T5_ENCODER
from precision_eval.cases.base import Workload
from precision_eval.core.errors import unknown_name

__all__ = ["ZOO", "ZOO_WORKLOADS", "ZooEntry", "keeping_float64", "zoo_entry_by_id"]

ZOO: tuple[ZooEntry, ...] = (DIA, T5_ENCODER, SVD_TIME_EMBED)
ZOO_WORKLOADS: tuple[Workload, ...] = tuple(entry.workload() for entry in ZOO)


def zoo_entry_by_id(entry_id: str) -> ZooEntry:
    """Look an entry up."""
    for entry in ZOO:
        if entry.id == entry_id:
            return entry
    raise unknown_name("zoo entry", entry_id, (entry.id for entry in ZOO))
