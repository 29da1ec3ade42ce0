"""The candidate remedies, as data, and how each is put on a model from outside.

- :mod:`.catalog`: ``FIXES`` and :func:`~.catalog.fix_by_id`; plain data, loads no torch.
- :mod:`.storage`: what parameters and caches are stored in.
- :mod:`.sites`: the operations where dtypes meet, and the cast each of them needs.
- :mod:`.patches`: exchanges those operations while a block runs, and puts the very originals back.
- :mod:`.graphs`: the same for cache writes in compiled graphs of torch 2.15.
- :mod:`.apply`: :class:`~.apply.AppliedFix`, the three together around one model.
"""

from __future__ import annotations

from precision_eval.fixes.catalog import FIXES, Fix, fix_by_id

__all__ = ["FIXES", "Fix", "fix_by_id"]
