"""Latency as paired, interleaved ratios: all candidates in one process, in blocks, in random order per round.

Conventions: times are seconds per call. A *block* is a run of calls of one candidate; its figure is the median over its
calls. A *round* holds one block of every candidate, in an order drawn anew each round (strict A-B-A-B was 3 % off on
identical calls). Ratios are formed within rounds only. Every block median is kept.

The baseline takes part twice, as itself and as its twin; the ratio of the two is the null (A/A) and stands under the
baseline's own name. Where the null is not equivalent to 1, every other result carries that as a doubt.

Contents
--------
:class:`Candidate`
    What is timed, and the context its blocks run in.
:func:`collect_blocks` → :class:`BlockSamples`
    The raw measurement.
:func:`paired_latency`
    The measurement and its statistics, per candidate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np

from precision_eval.errors import ParameterError
from precision_eval.measure.timers import HostTimer, Timer
from precision_eval.statistics import MIN_BLOCKS, PairedRatio, paired_ratio

BLOCK_S = 0.005
"""Least duration of a block: long against a clock reading, short against the drift of a machine."""

_MAX_CALLS = 20_000
_TWIN = "\0twin"  # cannot collide with a fix's id


@dataclass(frozen=True)
class Candidate:
    """One thing to time.

    Attributes
    ----------
    call : callable
        Timed, without arguments; repeatable.
    block : callable returning a context manager
        Entered around each block of calls, outside the timed region: a fix puts its call sites in place there.
    """

    call: Callable[[], object]
    block: Callable[[], AbstractContextManager[object]] = nullcontext


@dataclass(frozen=True)
class BlockSamples:
    """Raw block medians of one measurement.

    Attributes
    ----------
    median_s : dict of str to tuple of float
        Per candidate, one median per round, in seconds per call.
    calls_per_block : dict of str to int
        Calls in each block of that candidate.
    order : tuple of tuple of str
        Names in the order in which each round ran.
    elapsed_s, budget_s : float
        Time spent in rounds, and the time allowed for them.
    clock : str
        Clock of the samples.
    """

    median_s: dict[str, tuple[float, ...]]
    calls_per_block: dict[str, int]
    order: tuple[tuple[str, ...], ...]
    elapsed_s: float
    budget_s: float
    clock: str


def collect_blocks(
    candidates: Mapping[str, Candidate],
    *,
    budget_s: float,
    seed: int,
    timer: Timer | None = None,
    block_s: float = BLOCK_S,
    min_rounds: int = MIN_BLOCKS,
) -> BlockSamples:
    """Time all candidates in interleaved blocks until the budget is spent.

    Parameters
    ----------
    candidates : mapping of str to Candidate
        At least one.
    budget_s : float
        Seconds for all rounds together, > 0; the untimed warm-up round is not counted.
    seed : int
        Of the order within each round.
    timer : Timer, optional
        Clock; the wall clock of the host by default.
    block_s : float
        Least duration of a block.
    min_rounds : int
        Rounds that are run even where they exceed the budget.

    Returns
    -------
    BlockSamples

    Raises
    ------
    ParameterError
        No candidate, or a budget that is not positive. What a candidate raises passes through, with its name as a note.
    """
    if not candidates:
        raise ParameterError("no candidate to time; at least one is needed")
    if not (budget_s > 0.0 and math.isfinite(budget_s)):
        raise ParameterError(f"budget_s is {budget_s}; expected a finite number of seconds above 0")
    timer = timer or HostTimer("wall")
    calls = {name: _calls_per_block(name, candidate, timer, block_s) for name, candidate in candidates.items()}
    names = list(candidates)
    medians: dict[str, list[float]] = {name: [] for name in names}
    order: list[tuple[str, ...]] = []
    rng = np.random.default_rng(seed)
    started = time.perf_counter()
    elapsed_s = 0.0
    while len(order) < min_rounds or elapsed_s < budget_s:
        order.append(tuple(names[index] for index in rng.permutation(len(names))))
        for name in order[-1]:
            medians[name].append(float(np.median(_block(name, candidates[name], timer, calls[name]))))
        elapsed_s = time.perf_counter() - started
    return BlockSamples(
        median_s={name: tuple(values) for name, values in medians.items()},
        calls_per_block=calls,
        order=tuple(order),
        elapsed_s=elapsed_s,
        budget_s=budget_s,
        clock=timer.clock,
    )


def paired_latency(
    candidates: Mapping[str, Candidate],
    *,
    baseline: str,
    budget_s: float,
    margin: float,
    seed: int,
    twin: Candidate | None = None,
    timer: Timer | None = None,
    confidence: float = 0.95,
    threads: int = 1,
    block_s: float = BLOCK_S,
    min_rounds: int = MIN_BLOCKS,
) -> dict[str, PairedRatio]:
    """Latency of every candidate as a paired ratio to the baseline, with the baseline's null beside them.

    Parameters
    ----------
    candidates : mapping of str to Candidate
        By name; holds the baseline.
    baseline : str
        Name of the denominator.
    budget_s : float
        Seconds for all rounds together; at least `min_rounds` rounds run, and a doubt says so where that took longer.
    margin : float
        Relative half-width of *equivalent*; 0.002 = ±0.2 %.
    seed : int
        Of the order and of the bootstrap.
    twin : Candidate, optional
        A second, independent baseline (its own model and memory) for the null; the baseline itself by default.
    timer : Timer, optional
        Clock; see :mod:`precision_eval.measure.timers`.
    confidence : float
        Of the intervals.
    threads : int
        Intra-op threads in use; recorded, not set.
    block_s, min_rounds
        As in :func:`collect_blocks`.

    Returns
    -------
    dict of str to PairedRatio
        In the order of `candidates`; under the baseline's name the null: twin over baseline.

    Raises
    ------
    ParameterError
        The baseline is not among the candidates, or a parameter is out of range.
    """
    if baseline not in candidates:
        raise ParameterError(f"baseline '{baseline}' is not a candidate; candidates: {', '.join(candidates)}")
    samples = collect_blocks(
        {**candidates, _TWIN: twin or candidates[baseline]},
        budget_s=budget_s,
        seed=seed,
        timer=timer,
        block_s=block_s,
        min_rounds=min_rounds,
    )

    def summarise(name: str, doubts: tuple[str, ...]) -> PairedRatio:
        return paired_ratio(
            samples.median_s[name],
            samples.median_s[baseline],
            baseline=baseline,
            margin=margin,
            seed=seed,
            confidence=confidence,
            calls_per_block=samples.calls_per_block[name],
            threads=threads,
            clock=samples.clock,
            doubts=doubts,
        )

    over = _budget_doubts(samples)
    null = summarise(_TWIN, over)
    doubts = over + _null_doubts(null)
    return {name: null if name == baseline else summarise(name, doubts) for name in candidates}


def _block(name: str, candidate: Candidate, timer: Timer, calls: int) -> np.ndarray:
    """Run one block; an error names the candidate."""
    try:
        with candidate.block():
            return timer(candidate.call, calls)
    except Exception as error:
        error.add_note(f"raised while '{name}' was timed")
        raise


def _calls_per_block(name: str, candidate: Candidate, timer: Timer, block_s: float) -> int:
    """Warm a candidate up and return the number of calls that fill a block."""
    fastest_s = float(_block(name, candidate, timer, 1)[0])
    if (
        fastest_s < 20.0 * block_s
    ):  # a first call may be many times slower than the next; a long one fills a block anyway
        fastest_s = float(np.min(_block(name, candidate, timer, 3)))
    return min(_MAX_CALLS, max(1, math.ceil(block_s / max(fastest_s, 1e-9))))


def _budget_doubts(samples: BlockSamples) -> tuple[str, ...]:
    """Say where the least number of rounds took longer than was allowed."""
    if samples.elapsed_s <= 1.25 * samples.budget_s:
        return ()
    return (
        f"over budget: {len(samples.order)} rounds took {samples.elapsed_s:.1f} s of {samples.budget_s:.1f} s; "
        "no more were run",
    )


def _null_doubts(null: PairedRatio) -> tuple[str, ...]:
    """Say where the baseline differs from itself."""
    if null.verdict not in ("better", "worse"):
        return ()
    return (
        f"the null is off: the baseline against itself gave {null.ratio:.4f} "
        f"[{null.ratio_low:.4f}, {null.ratio_high:.4f}], not 1 ± {null.margin:g}",
    )
