"""The length and the rows that a size of a case stands for, as its definition has them.

Conventions: a length is the number of positions that attention covers in a call (slots of the cache, or tokens of an
encoder or a prefill); rows are sequences, those of guidance included. A case without either has no extent.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from precision_eval.core.errors import ParameterError
from precision_eval.results.model import Group

# cases, module of their sizes, name of the table, attribute of the length, rows (or the attribute that has them)
_TABLES: tuple[tuple[str, str, str, str, int | str], ...] = (
    ("attention-*", "precision_eval.cases.systems.attention", "SHAPES", "slots", "batch"),
    ("metavoice-prefill*", "precision_eval.cases.systems.metavoice", "SIZES", "prompt", 2),
    ("metavoice-*", "precision_eval.cases.systems.metavoice", "SIZES", "slots", 2),
    ("dia-encode", "precision_eval.cases.systems.dia", "ENCODER_SIZES", "text_length", 2),
    ("dia-decode*", "precision_eval.cases.systems.dia", "DECODER_SIZES", "slots", 2),
    ("cogvideo-t5-*", "precision_eval.cases.systems.cogvideo_t5", "SIZES", "tokens", 1),
)


@dataclass(frozen=True)
class Extent:
    """Positions that attention covers, and rows."""

    length: int
    rows: int


def extent_of(case: str, size: str) -> Extent | None:
    """Return the extent of a case's size."""
    for pattern, module, table, attribute, rows in _TABLES:
        if fnmatchcase(case, pattern):
            found = getattr(importlib.import_module(module), table).get(size)
            if found is None:
                return None
            return Extent(getattr(found, attribute), getattr(found, rows) if isinstance(rows, str) else rows)
    return None


def nearest_in_length(groups: Sequence[Group], *, length: int | None, batch: int | None) -> tuple[Group, ...]:
    """Keep, of each case, mode and pin, the size nearest to a length, and the sizes of a batch."""
    if batch is not None:
        groups = _of_batch(groups, batch)
    if length is None:
        return tuple(groups)
    found: list[Group] = []
    for key in dict.fromkeys((one.case, one.mode, one.device, one.threads, one.pins) for one in groups):
        alike = [one for one in groups if (one.case, one.mode, one.device, one.threads, one.pins) == key]
        known = [(extent, one) for one in alike if (extent := extent_of(one.case, one.size)) is not None]
        if not known:
            found += [
                _noted(one, f"{one.size} states no length, so it stands for {length:,} as it is") for one in alike
            ]
            continue
        extent, group = min(known, key=lambda pair: (abs(math.log(pair[0].length / length)), -pair[0].length))
        if extent.length != length:
            group = _noted(group, f"measured at length {extent.length:,}, asked for {length:,}")
        found.append(group)
    return tuple(found)


def _of_batch(groups: Sequence[Group], batch: int) -> list[Group]:
    kept: list[Group] = []
    seen: set[int] = set()
    for group in groups:
        extent = extent_of(group.case, group.size)
        if extent is None:
            kept.append(_noted(group, f"{group.size} states no batch; it stands for {batch} as it is"))
        elif extent.rows == batch:
            kept.append(group)
        else:
            seen.add(extent.rows)
    if not kept and seen:
        raise ParameterError(
            f"no size in the run has {batch} rows, only {', '.join(map(str, sorted(seen)))}; leave --batch out, or "
            f"measure the two casts alone: precision-eval sweep --batch {batch}"
        )
    return kept


def _noted(group: Group, note: str) -> Group:
    return replace(group, notes=(*group.notes, note))
