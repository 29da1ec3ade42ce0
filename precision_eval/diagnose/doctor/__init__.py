"""The doctor: where dtypes split in a model, what brought each dtype there, and which fix cures it.

:func:`examine` runs a copy of the model once under observation, judges what it saw, holds it to the compiler, and tries
every fix of ``FIXES`` from outside. ``import precision_eval.diagnose.doctor`` loads no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from precision_eval.diagnose.doctor.diagnosis import Diagnosis

if TYPE_CHECKING:
    from precision_eval.diagnose.doctor.examination import examine

__all__ = ["Diagnosis", "examine"]


def __getattr__(name: str) -> Any:
    if name == "examine":
        from precision_eval.diagnose.doctor.examination import examine

        return examine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
