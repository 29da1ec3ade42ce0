"""A fix put on a case and called once: what a tool that times by itself needs.

Conventions: CPU, one thread. The model is not copied, so that the process holds what the fix stores and no more.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import torch

from precision_eval.core.cells import failed, failure_of
from precision_eval.core.errors import UnsupportedError
from precision_eval.core.formats import support
from precision_eval.studies.tracking.effort import DEVICE, FULL, THREADS, Effort
from precision_eval.studies.tracking.place import TrackedCell, raise_unless_passed


def ready(place: TrackedCell, label: str, *, stack: ExitStack, effort: Effort = FULL) -> Callable[[], object]:
    """Build a case, put a fix on it and call it once."""
    fix, where = place.checked_fix(label, effort), place.at(effort)
    torch.set_num_threads(THREADS)
    try:
        if fix.storage not in ("as_shipped", "per_case"):
            found = support(DEVICE, fix.storage)
            if found.kind == "absent":
                raise UnsupportedError(f"{fix.storage} on {DEVICE}: {found.reason}")
        case = where.entry.build(where.size, device=DEVICE, seed=effort.options.seed)
        applied = stack.enter_context(fix.applied(case.model, mode=where.mode))
        call = partial(applied, *applied.prepare(case.inputs))
        broken = _not_finite_count(call())
    except Exception as error:  # whatever a model raises under a fix is that fix's result
        raise_unless_passed(failure_of(fix.id, error))
        raise
    if broken:
        raise_unless_passed(failed(fix.id, "non_finite", f"{broken} output values are NaN or infinite"))
    return call


def _not_finite_count(output: object) -> int:
    tensors = output if isinstance(output, tuple | list) else (output,)
    floating = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor) and tensor.is_floating_point()]
    return sum(int((~torch.isfinite(one)).sum()) for one in floating)
