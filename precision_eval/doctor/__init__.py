"""The doctor: where dtypes split in a model, what brought each dtype there, and which fix cures it.

:func:`examine` runs a copy of the model once under observation, judges what it saw, holds it to the compiler, and tries
every fix of ``FIXES`` from outside. ``import precision_eval.doctor`` loads no torch.

Words
-----
*Base* is the dtype of most elements of the parameters. A tensor is *deliberate* where it is not in the base because the
code says so: a cast to another dtype, an argument ``dtype=``, autocast, a parameter that the model's class declares to
be kept in float32, or a result that has its dtype from such a tensor. What is *stored* was there before the call:
parameters, buffers, tensors that modules or inputs hold. A stored tensor of another dtype is *stray* until the code
casts it.

The rule
--------
Unlike floating dtypes meet in models all the time, and mostly on purpose. An operation is a **fault** where

1. it **raises** over dtypes; or a module's own check does;
2. it **promotes in silence**: operands of unlike dtypes (zero-dimensional ones aside, which promote nothing) give a
   result of a dtype that no deliberate operand brought, *and* that dtype *leaks*: it reaches a product, attention, a
   recurrent layer, a norm, the model's output or an error, or meets a narrower operand again in another module's call.
   Where it is cast before any of these, as in a norm or a rotation that ends in ``.to(x.dtype)``, it is *contained*;
   that too is a fault where the same stray tensor leaks further on, since there it came in.
   A cast to the dtype of a tensor that carries such a dtype (``y.to(x.dtype)``) carries it too, and asked for nothing.
   A promotion to a deliberate dtype is a fault too where that dtype then raises: it was not wanted there;
3. it **casts down in silence**: a write into a stored tensor (slice assignment, ``copy_``, arithmetic in place) that
   drops digits or range, unless the destination is in the base and every value was deliberate (a float32 rotation
   coming home); or arithmetic in place that folds a stray tensor into a narrower one;
4. a parameter is in float16 that the model's class keeps in float32 (``_keep_in_fp32_modules``; ``.half()`` after
   loading does that without a word);
5. the output is not finite: the first result that is not, though its operands are.

A **risk** is right here and hangs on something: a contained promotion by a stray tensor, on the cast after it; a norm
whose weights are wider than its input, on the torch and the device (the input's dtype comes back on this one, float32
from 2.6's RMS norm, an error from CUDA's layer norm). Everything else is a **note**: deliberate promotions, batch
norm's float32 statistics, masks, integer indices, writes into a wider tensor. The *first split* is the first fault in
the order of execution, so a promotion that only raises further on is named where it happens; where there is no fault,
the first risk.

What is missed: a cast whose way back was forgotten, and that raises nothing, cannot be told from a residual kept wide
on purpose; it is a note.

Contents
--------
examination
    :func:`examine`.
diagnosis
    :class:`Diagnosis` and its parts, plain data.
observer, operations, events, provenance, numbers, observing
    Following one call.
findings, summaries, patch, source
    From what was seen to what is told.
subject, oracle, remedies
    Runs on copies, the float64 reference, the fixes tried.
targets
    Models from a factory, a checkpoint or a workload.
text
    For a terminal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .diagnosis import Diagnosis

if TYPE_CHECKING:
    from .examination import examine

__all__ = ["Diagnosis", "examine"]


def __getattr__(name: str) -> Any:
    if name == "examine":
        from .examination import examine

        return examine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
