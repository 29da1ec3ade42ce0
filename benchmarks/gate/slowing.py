"""Calls with extra work of known length, in short blocks.

Conventions: seconds. A slowed call does what the plain one does and then lets the interpreter count, for a fraction of
the plain call's time that is found anew in each process. Work in whole calls would be exact by definition, but 2 %
needs blocks of 50 calls, and a block longer than about a tenth of a millisecond is seldom free of interruptions: on
shared cores its times scatter several times as much as those of 5 calls. What the slowed calls really took, beside the
plain ones, is measured in the trials (``injected``).

Contents: :class:`Slowed`, :func:`slowed_call`.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from itertools import repeat
from typing import Any

_ITEMS, _PASSES = 20_000, 15
_PLAIN_S, _FEWEST = 0.03, 9


class Slowed:
    """A call, followed by counting.

    Parameters
    ----------
    call : callable
        Without arguments.
    items : int
        How far is counted, ≥ 0.
    """

    def __init__(self, call: Callable[[], Any], items: int) -> None:
        self._call, self.items = call, items

    def __call__(self) -> Any:
        output = self._call()
        _count(self.items)
        return output


def slowed_call(call: Callable[[], Any], delta: float) -> Slowed:
    """Return the call with work that takes a fraction `delta` of its time more, as found now.

    Parameters
    ----------
    call : callable
        Without arguments; has been called before.
    delta : float
        > 0.

    Returns
    -------
    Slowed
    """
    empty_s = _shortest_s(lambda: _count(0))
    item_s = (_shortest_s(lambda: _count(_ITEMS)) - empty_s) / _ITEMS
    return Slowed(call, max(0, round((delta * _median_s(call) - empty_s) / item_s)))


def _count(items: int) -> None:
    deque(repeat(None, items), maxlen=0)


def _shortest_s(call: Callable[[], Any]) -> float:
    return min(_timed_s(call) for _ in range(_PASSES))


def _median_s(call: Callable[[], Any]) -> float:
    found: list[float] = []
    started = time.perf_counter()
    while len(found) < _FEWEST or time.perf_counter() - started < _PLAIN_S:
        found.append(_timed_s(call))
    return statistics.median(found)


def _timed_s(call: Callable[[], Any]) -> float:
    before = time.perf_counter()
    call()
    return time.perf_counter() - before
