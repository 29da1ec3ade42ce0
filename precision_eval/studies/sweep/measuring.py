"""One job of the sweep, in a worker of its own: build attention at a length, put the fixes on, time them; loads torch.

Conventions: the cache has as many slots as the length says, all of them in use, under the boolean mask that both
systems pass; one query per head. Every fix has a copy of the cache to itself. Two groups are timed, half of the budget
each: all three fixes with ``full_float32`` as the baseline, and the two casts against each other, with
``query_to_half`` as the baseline. Caches of the processor are warm with what the candidate before has left.
"""

from __future__ import annotations

import zlib
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import torch

from precision_eval.cases.base import BuiltCase
from precision_eval.cases.systems.attention import SHAPES, attention_case
from precision_eval.core.cells import Cell, Options, Outcome, failure_of, passed
from precision_eval.core.errors import CandidateError, UnsupportedError
from precision_eval.measure import generic
from precision_eval.measure.allocator import hold_memory, large_room_taken, page_faults_per_call
from precision_eval.measure.latency import Candidate, compare_latency, take_random_memory
from precision_eval.stats import PairedRatio
from precision_eval.studies.sweep.plan import (
    BASELINE,
    CASTS,
    FIXES,
    NOISE_FLOOR,
    TO_HALF,
    TO_QUERY,
    Line,
    SweepConfiguration,
    SweepJob,
    line_of,
)  # fmt: skip


def measure_job(job: SweepJob) -> list[Line]:
    """Measure every length of a job in this process, which is expected to be a worker of its own."""
    torch.set_num_threads(job.configuration.threads)
    try:
        hold_memory(job.configuration.memory)
    except UnsupportedError as error:
        outcomes = {fix: failure_of(fix, error) for fix in FIXES}
        return [line_of(job, length, outcomes) for length in job.lengths]
    padding = take_random_memory(job.process)
    lines = [_measured(job, length) for length in job.lengths]
    del padding
    return lines


def build_case(configuration: SweepConfiguration, length: int, *, seed: int) -> BuiltCase:
    """Build attention of one query against a cache of `length` slots, all in use."""
    shape = replace(SHAPES[configuration.shape], batch=configuration.batch, slots=length, filled=length)
    return attention_case(shape, device="cpu", seed=seed, prefill=False, cache_dtype_name=configuration.cache_dtype)


def _measured(job: SweepJob, length: int) -> Line:
    """Put the fixes on, time them, count page faults."""
    with ExitStack() as stack:
        candidates, twin, outcomes = _prepared(job, length, stack)
        try:
            with large_room_taken(job.configuration.memory):
                ratios = _ratios(job, length, candidates, twin)
                faults = {fix: page_faults_per_call(one) for fix, one in candidates.items()}
        except CandidateError as error:
            ratios, faults = {}, {}
            outcomes |= {fix: failure_of(fix, error) for fix in candidates}
    if job.configuration.mode == "compiled":
        torch.compiler.reset()  # else every length's model and code stay
    return line_of(job, length, outcomes, ratios=ratios, page_faults=faults)


def _prepared(
    job: SweepJob, length: int, stack: ExitStack
) -> tuple[dict[str, Candidate], Candidate | None, dict[str, Outcome]]:
    """Put the fixes on; return those that work, a second copy of the baseline, and what became of each fix."""
    configuration = job.configuration
    cell = Cell(
        case="attention-decode",
        fixes=FIXES,
        mode=configuration.mode,
        device="cpu",
        size=f"{configuration.shape}-{length}",
        threads=configuration.threads,
        measure="latency",
        options=Options(budget_s=job.budget_s, seed=job.seed),
    )
    prepared = partial(generic.prepared, cell, built=build_case(configuration, length, seed=job.seed), stack=stack)
    tried = {fix: prepared(fix) for fix in FIXES}
    twin = prepared(BASELINE) if isinstance(tried[BASELINE], Candidate) else None
    if isinstance(twin, Outcome):  # such as no memory for it: a baseline without its noise floor is not timed
        tried[BASELINE], twin = twin, None
    candidates = {fix: ready for fix, ready in tried.items() if isinstance(ready, Candidate)}
    outcomes = {fix: passed(fix, {}) if isinstance(ready, Candidate) else ready for fix, ready in tried.items()}
    return candidates, twin, outcomes


def _ratios(
    job: SweepJob, length: int, candidates: dict[str, Candidate], twin: Candidate | None
) -> dict[str, PairedRatio]:
    """Time both groups, as far as their members work."""
    compare = partial(
        compare_latency,
        budget_s=job.budget_s / 2.0,
        margin=generic.MARGIN,
        seed=zlib.crc32(job.key(length).encode()),  # of the order: its own for every line, so that errors are too
        check=False,  # that each output is finite was seen when the fix was put on, and nothing is written
        threads=job.configuration.threads,
        memory=job.configuration.memory,
    )
    ratios: dict[str, PairedRatio] = {}
    if twin is not None and len(candidates) > 1:
        ratios = compare(candidates, baseline=BASELINE, noise_floor=twin)
        ratios[NOISE_FLOOR] = ratios.pop(BASELINE)
    if TO_HALF in candidates and TO_QUERY in candidates:
        casts = {fix: candidates[fix] for fix in (TO_HALF, TO_QUERY)}
        ratios[CASTS] = compare(casts, baseline=TO_HALF)[TO_QUERY]
    return ratios
