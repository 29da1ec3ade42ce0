"""The candidate remedies, as data, and how each is put on a model from outside."""

from __future__ import annotations

from precision_eval.fixes.catalog import FIXES, MORE_FIXES, Fix, fix_by_id

__all__ = ["FIXES", "MORE_FIXES", "Fix", "fix_by_id"]
