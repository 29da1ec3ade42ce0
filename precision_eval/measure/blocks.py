"""Blocks of calls, interleaved in random order: the raw measurement under every latency figure.

Conventions: times are seconds per call. A *block* is a run of calls of one candidate; its time is the median over its
calls (of the cpu clock, where a block reads it once, the mean). A *round* holds one block of every candidate, in an
order drawn anew each round: strict A-B-A-B was 3 % off on identical calls, and random order makes the log-ratio of
equal candidates symmetric about 0. Every block is kept.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from precision_eval.core.errors import CandidateError
from precision_eval.measure.timers import (
    COUNTED_EVERY,
    CPU_PER_CALL_UP_TO,
    Blocks,
    HostTimer,
    Timer,
    blocks_of,
    collector_off,
)
from precision_eval.stats.doubts import MIN_BLOCKS
from precision_eval.stats.paired import locations_by_group, over_groups, paired_log_ratios
from precision_eval.stats.robust import Location, student_location

# Least duration of a block. Short blocks make many pairs close in time: on calls of 0.03 to 0.2 ms, blocks of 0.5 ms
# gave half the standard error of blocks of 2 ms in the same 2 s.
BLOCK_S = 0.0005

# Blocks of calls shorter than this hold at least three, whose median forgives one; longer calls are a block each. Every
# block has an odd number of calls. Of calls in two states in turn, a block then begins with the one and the next with
# the other; with an even number each candidate kept the state it began in, and equal calls were 0.8 % apart.
MIN_CALLS, MANY_CALLS_UP_TO_S = 3, 0.0025

# Most time that sizing takes where every call is short: longer than the bursts of other processes that were seen.
SIZING_S = 0.06

# Candidates whose blocks differ by less than this factor get the baseline's number of calls.
SIMILAR = 1.5

T = TypeVar("T")
Reader = Callable[[Callable[[], object], int], Any]

_SLICE_S = 0.5  # evaluating five times as often took 2 % of the time on a loaded machine
_ORDERS = 256
_MAX_CALLS = 20_000
_PASSES = 3
_LONG_S = 0.005
_TURN_READINGS, _TURN_CALLS, _TURNS_UP_TO_S, _TURNS = 5, 12, 0.0005, 0.82
_WAITING_BLOCKS = 0.05
_OTHER_THREADS = 0.02
_CPU_ADVANTAGE = 0.8
_PREEMPTED_BLOCKS = 0.1


@dataclass(frozen=True)
class Candidate:
    """One thing to time.

    Attributes
    ----------
    call : callable
        Timed, without arguments; repeatable.
    block : callable returning a context manager
        Entered around each block of calls, outside the timed region: a fix puts its call sites in place there.
    doubt : str
        What keeps its time on the device from being that.
    """

    call: Callable[[], object]
    block: Callable[[], AbstractContextManager[object]] = nullcontext
    doubt: str = ""


def read_block(name: str, candidate: Candidate, read: Callable[[Callable[[], object], int], T], calls: int) -> T:
    try:
        if candidate.block is nullcontext:  # the less runs between two blocks, the less a block's first calls lack
            return read(candidate.call, calls)
        with candidate.block():
            return read(candidate.call, calls)
    except Exception as error:
        message = f"candidate '{name}' raised while it was timed: {type(error).__name__}: {error}"
        raise CandidateError(message) from error


def block_sizes(
    candidates: Mapping[str, Candidate], timer: Timer, *, baseline: str, sizing_s: float = SIZING_S
) -> dict[str, int]:
    """Warm the candidates up and return the number of calls in a block of each."""
    fastest_s = {name: _first_call_s(name, candidate, timer) for name, candidate in candidates.items()}
    passes, started = 0, time.perf_counter()
    while passes < _PASSES or time.perf_counter() - started < sizing_s:
        for name, candidate in candidates.items():
            if fastest_s[name] < _LONG_S:  # a longer call is a block by itself however long
                fastest_s[name] = min(fastest_s[name], _shortest_s(name, candidate, timer, 5))
        passes += 1
        if all(shortest >= _LONG_S for shortest in fastest_s.values()):
            break
    calls = {}
    for name, shortest_s in fastest_s.items():
        least = MIN_CALLS if shortest_s < MANY_CALLS_UP_TO_S else 1
        calls[name] = min(_MAX_CALLS, max(least, math.ceil(BLOCK_S / max(shortest_s, 1e-9)))) | 1
    base = calls[baseline]
    return {name: base if base / SIMILAR < count < base * SIMILAR else count for name, count in calls.items()}


def alternates(name: str, candidate: Candidate, timer: HostTimer) -> bool:
    """Whether every second call of a short candidate lasts longer, as where two buffers are used in turn.

    Of calls that only scatter, two thirds lie above or below both their neighbours; of calls in two states, all but
    those that something else disturbs. Taking the former for the latter costs an interval that is a fifth wider.
    """
    if _shortest_s(name, candidate, timer, 3) > _TURNS_UP_TO_S:
        return False
    turns = []
    for _ in range(_TURN_READINGS):
        samples_s = read_block(name, candidate, timer, _TURN_CALLS)[timer.clocks[0]]
        if np.median(samples_s) > _TURNS_UP_TO_S:
            return False
        steps = np.diff(samples_s)
        turns.append(np.mean(steps[1:] * steps[:-1] < 0.0))
    return float(np.mean(turns)) >= _TURNS


def _first_call_s(name: str, candidate: Candidate, timer: Timer) -> float:
    """A first call may be many times slower than the next, unless it is long anyway."""
    first_s = _shortest_s(name, candidate, timer, 1)
    return first_s if first_s >= 20.0 * _LONG_S else min(first_s, _shortest_s(name, candidate, timer, 2))


def _shortest_s(name: str, candidate: Candidate, timer: Timer, calls: int) -> float:
    return float(read_block(name, candidate, timer, calls)[timer.clocks[0]].min())


@dataclass
class Rounds:
    """Interleaved rounds of blocks, collected bit by bit.

    Between two blocks nothing is computed: raw counters are kept, and evaluated after a slice of rounds.
    """

    candidates: Mapping[str, Candidate]
    timer: Timer
    calls: Mapping[str, int]
    seed: int
    order: list[tuple[str, ...]] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)  # of each round, the number of its placement
    group: int = 0
    preempted: dict[str, list[bool]] = field(default_factory=lambda: defaultdict(list))
    waited: dict[str, list[bool]] = field(default_factory=lambda: defaultdict(list))
    other_threads: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    page_faults: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    elapsed_s: float = 0.0

    def __post_init__(self) -> None:
        self._orders = _orders(tuple(self.candidates), np.random.default_rng(self.seed))
        self.times_s: dict[str, dict[str, list[float]]] = {clock: defaultdict(list) for clock in self.timer.clocks}

    def run_until(self, elapsed_s: float, *, min_rounds: int = MIN_BLOCKS) -> None:
        """Add rounds until that much time was spent in them, and at least `min_rounds`."""
        started = time.perf_counter() - self.elapsed_s
        while len(self.order) < min_rounds or self.elapsed_s < elapsed_s:
            self._add_slice(started, elapsed_s, min_rounds)

    def _add_slice(self, started: float, elapsed_s: float, min_rounds: int) -> None:
        """Run rounds for up to :data:`_SLICE_S`, then evaluate them; the collector may run between two slices."""
        every, counted, timed = self._readers()
        raw: dict[str, list[Any]] = {name: [] for name in self.candidates}
        slice_end_s = self.elapsed_s + _SLICE_S
        with collector_off():
            for names in self._orders:
                read = timed if len(self.order) % every else counted
                for name in names:
                    raw[name].append(read_block(name, self.candidates[name], read, self.calls[name]))
                self.order.append(names)
                self.groups.append(self.group)
                self.elapsed_s = time.perf_counter() - started
                if self.elapsed_s >= slice_end_s or (self.elapsed_s >= elapsed_s and len(self.order) >= min_rounds):
                    break
        for name, blocks in raw.items():
            self._evaluate(name, self.timer.blocks(blocks) if isinstance(self.timer, HostTimer) else blocks_of(blocks))

    def _readers(self) -> tuple[int, Reader, Reader]:
        """Return once in how many rounds to count, and how to read a block with its counts and without."""
        if not isinstance(self.timer, HostTimer):
            return 1, self.timer, self.timer
        return 1 if self.timer.cpu_per_call else COUNTED_EVERY, self.timer.raw, self.timer.raw_times

    def _evaluate(self, name: str, blocks: Blocks) -> None:
        for clock, times_s in blocks.times_s.items():
            self.times_s[clock][name] += times_s.tolist()
        self.preempted[name] += (blocks.preemptions > 0).tolist()
        self.waited[name] += (blocks.waits > 0).tolist()
        self.other_threads[name] += blocks.other_threads.tolist()
        self.page_faults[name] += blocks.page_faults.tolist()

    def begin_group(self) -> None:
        """Begin a group of rounds in another placement; its first calls, which find cold caches, are not timed."""
        self.group += 1
        for name, candidate in self.candidates.items():
            read_block(name, candidate, lambda call, _: call(), 1)

    def location(self, name: str, baseline: str, clock: str) -> Location:
        """Locate a candidate's log-ratios, over its groups where there are several."""
        times = self.times_s[clock]
        log_ratios = paired_log_ratios(times[name], times[baseline])
        if self.group == 0:
            return student_location(log_ratios)
        return over_groups(locations_by_group(log_ratios, self.groups))[0]

    def page_faults_per_call(self, name: str) -> float | None:
        """Median over a candidate's counted blocks; None where the timer does not count them."""
        median = float(np.median(self.page_faults[name]))
        return None if math.isnan(median) else median

    def preempted_fraction(self, names: Sequence[str]) -> float:
        """Share of the counted blocks of these candidates in which the processor was taken away."""
        return float(np.mean([flag for name in names for flag in self.preempted[name]]))


def _orders(names: tuple[str, ...], rng: np.random.Generator) -> Iterator[tuple[str, ...]]:
    """Yield the candidates in random order without end, drawn ahead: a draw costs as much as reading all clocks."""
    while True:
        orders = rng.permuted(np.tile(np.arange(len(names)), (_ORDERS, 1)), axis=1)  # (orders, candidates)
        yield from [tuple(names[index] for index in order) for order in orders.tolist()]


def choose_clock(rounds: Rounds, name: str, baseline: str) -> str:
    """Choose the clock that a pair's ratio rests on."""
    clocks, pair = rounds.timer.clocks, (name, baseline)
    if len(clocks) == 1 or not all(_only_computes(rounds, who) for who in pair):
        return clocks[0]
    errors = {}
    for clock in clocks:
        times = rounds.times_s[clock]
        if min(map(min, (times[name], times[baseline]))) <= 0.0:
            return clocks[0]  # too coarse to use
        errors[clock] = rounds.location(name, baseline, clock).standard_error
    first, second = clocks
    few_calls = max(rounds.calls[who] for who in pair) <= CPU_PER_CALL_UP_TO
    if few_calls and rounds.preempted_fraction(pair) > _PREEMPTED_BLOCKS:
        return second
    return second if errors[second] < _CPU_ADVANTAGE * errors[first] else first


def _only_computes(rounds: Rounds, name: str) -> bool:
    """Whether a candidate neither waits nor leaves work to other threads."""
    waits = float(np.mean(rounds.waited[name]))
    return waits <= _WAITING_BLOCKS and float(np.median(rounds.other_threads[name])) <= _OTHER_THREADS
