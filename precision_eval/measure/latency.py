"""Which of several calls is faster, by how much, and how sure one can be: :func:`compare_latency`.

Conventions: times are seconds per call, ratios are candidate over baseline (below 1 = faster). All candidates run in
one process, in short blocks, in random order per round; ratios are formed within rounds. The data are looked at a few
planned times, and measuring stops when every verdict is settled; the rate of false alarms is kept over all looks and
all candidates. Nothing is dropped.

Where tensors lie is drawn once when they are made: two copies of the same weights can differ by several per cent for as
long as they live. So tensors that candidates do not share are laid elsewhere several times while they are timed, and
these placements are the independent units of the interval (:mod:`precision_eval.measure.placement`).
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import scipy.special  # noqa: F401 - here, as a first comparison would import it within its budget

from precision_eval.core.errors import ParameterError, check_known
from precision_eval.core.formatting import duration_text
from precision_eval.measure.allocator import (
    GROWN,
    MEMORY_STATES,
    hold_memory,
    page_faults_without_room,
    take_large_room,
)
from precision_eval.measure.blocks import SIZING_S, Candidate, Rounds, alternates, block_sizes, choose_clock, read_block
from precision_eval.measure.candidates import check_candidate, check_resolvable
from precision_eval.measure.graphs import CudaDevice, compare_on_device
from precision_eval.measure.placement import NOTHING_MOVES, Draws, check_cards, draws_of
from precision_eval.measure.timers import (
    CPU_PER_CALL_UP_TO,
    Cache,
    CudaTimer,
    HostTimer,
    LaunchedTimer,
    Timer,
    timer_for,
)
from precision_eval.stats.doubts import MIN_BLOCKS
from precision_eval.stats.intervals import CONFIDENCE
from precision_eval.stats.paired import ERROR_RATE, PairedRatio, paired_ratio
from precision_eval.stats.sequential import EQUIVALENCE_ALPHA, LOOKS, decide, look_errors, student_quantile

__all__ = ["Candidate", "Candidates", "compare_latency"]

Candidates = Mapping[str, Callable[[], object] | Candidate]

_NOISE_FLOOR = "\0noise floor"  # cannot collide with a candidate's name
_PREEMPTED_DOUBT = 0.2
_LAUNCH_BOUND = 0.9
_LAUNCHED_AT_LEAST = 3
_FAULT_S = 1e-7  # the least that one takes, the clearing of its page not counted
_FAULTS_DOUBT = 0.01
_SIZING_SHARE = 0.01
_LEAST_IN_PAIRS = 5  # four overlapping pairs, whose median forgives one call
_FIRST_PART = 0.1
_MOST_FOR_ANALYSIS = 0.5
_IN_GROUP = 2  # rounds at least; more groups tell more than more rounds of one
_LEAST_GROUPS, _LEAST_AFFORDED = 3, 8  # where moving takes half the time, fewer left a ratio of 0.8 undecided
_GROUPS_A_SECOND = 6.0
_SHARE_FOR_DRAWS = 0.5  # of the budget at most


@dataclass(frozen=True, kw_only=True)
class _Rules:
    """How calls are compared, and what the doubts rest on."""

    baseline: str
    margin: float
    seed: int
    min_rounds: int
    threads: int
    memory: str
    judged: tuple[str, ...]  # the candidates that get a verdict
    faults: Mapping[str, float]
    launching: Mapping[str, float]

    def errors(self, look: int, looks: tuple[float, ...]) -> tuple[float, float]:
        """Errors that one candidate may spend at a look: on a direction, on equivalence."""
        return (look_errors(ERROR_RATE / len(self.judged), looks)[look], look_errors(EQUIVALENCE_ALPHA, looks)[look])


def compare_latency(
    candidates: Candidates,
    *,
    baseline: str,
    budget_s: float,
    margin: float = 0.002,
    device: str = "cpu",
    seed: int = 0,
    cache: Cache = "warm",
    graph: bool = False,
    noise_floor: Candidate | None = None,
    stop_early: bool = True,
    check: bool = True,
    timer: Timer | None = None,
    threads: int | None = None,
    min_rounds: int = MIN_BLOCKS,
    memory: str = GROWN,
    redraw: bool | None = None,
) -> dict[str, PairedRatio]:
    """Compare the latency of several calls by interleaved, paired blocks.

    Parameters
    ----------
    candidates : mapping of str to callable or Candidate
        Calls without arguments, at least two, the baseline among them.
    baseline : str
        Name of the denominator.
    budget_s : float
        Seconds for everything, > 0: checks, sizing, rounds and statistics; building and capturing the candidates and
        starting processes are not in it. Less is used where every verdict settles before.
    margin : float
        Relative half-width of what counts as equivalent; 0.002 = ±0.2 %.
    device : str
        ``"cpu"``, ``"cuda"``, ``"cuda:i"`` or ``"mps"``; decides the clock.
    seed : int
        Of the order and of the bootstrap.
    cache : {"warm", "cold"}
        CUDA only: leave the L2 cache as it is, or overwrite it before each call.
    graph : bool
        CUDA only: capture each call as a graph inside its block, and time the replay: the device's time, with no
        Python in it. What cannot be captured is timed by the sum of its kernels' times, on a `clock` of that name and
        with a doubt that says which line forbids the capture.
    noise_floor : Candidate, optional
        A copy of the baseline, on tensors of its own, that takes part too: the very same call would find its caches
        warm. A baseline that differs from its copy is a doubt of every ratio.
    stop_early : bool
        Stop when every verdict is settled and every interval is within ± `margin`; otherwise spend the budget.
    check : bool
        Call every candidate twice before and refuse those that raise, return nothing, do not repeat or change inputs.
    timer : Timer, optional
        Another clock.
    threads : int, optional
        Intra-op threads, for the record; torch's by default, 1 where torch is not loaded.
    min_rounds : int
        Rounds that are run even where they exceed the budget.
    memory : {"grown", "kept"}
        State of the C library's allocator (:mod:`precision_eval.measure.allocator`), which decides what a call's large
        temporaries cost: *grown*, as a process that has loaded a model leaves it; *kept*, freed blocks are never given
        back. A process stays in the state.
    redraw : bool, optional
        Lay the tensors that candidates carry (arguments of a partial, variables of a closure, tensors of their modules)
        elsewhere in memory several times, each value as it is, and take what that changes into the interval. By default
        on a GPU where not all candidates carry the same; of graphs always, as each capture has memory of its own.

    Returns
    -------
    dict of str to PairedRatio
        One per candidate other than the baseline, in their order; with `noise_floor` first the baseline's own.

    Raises
    ------
    CandidateError
        A candidate cannot be timed; the message names it.
    ParameterError
        A parameter is out of range, the baseline is missing, or a candidate is on another GPU than `device`.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.arange(20_000.0)
    >>> found = compare_latency(
    ...     {"once": lambda: np.sqrt(x), "twice": lambda: np.sqrt(np.sqrt(x))}, baseline="once", budget_s=0.3
    ... )
    >>> found["twice"].verdict
    'slower'
    """
    check_known("state of memory", memory, MEMORY_STATES)
    _check_parameters(budget_s, margin, noise_floor)
    named = _named(candidates, baseline)
    end_s = time.perf_counter() + budget_s
    if len(named) < 2 and noise_floor is None:
        raise ParameterError(
            f"'{baseline}' is the only candidate; give another to compare with it, or a copy of it as noise_floor"
        )
    check_cards(named if noise_floor is None else {**named, f"copy of {baseline}": noise_floor}, device)
    graphs = CudaDevice(device) if graph else None
    timer = timer or (timer_for(device, cache=cache) if graphs is None else graphs.graph_timer(cache))
    carrying = [*named.values(), *([] if noise_floor is None else [noise_floor])]
    draws = draws_of(carrying, seed, wanted=redraw if graphs is None or redraw is False else True)
    if draws is None and graphs is not None and redraw is not False:
        draws = NOTHING_MOVES  # a graph's own memory is drawn with each capture
    for name, candidate in named.items() if check else ():
        check_candidate(name, candidate)
    compare = partial(
        _compare, baseline=baseline, margin=margin, seed=seed, stop_early=stop_early, threads=threads,
        min_rounds=min_rounds, memory=memory,
    )  # fmt: skip
    if graphs is None:
        return compare(named, noise_floor, timer, budget_s, draws, end_s=end_s)
    left_s = max(end_s - time.perf_counter(), 1e-3)
    return compare_on_device(
        named, noise_floor, graphs, left_s, baseline=baseline, timer=timer, draws=draws, compare=compare
    )


def _compare(
    named: Mapping[str, Candidate],
    noise_floor: Candidate | None,
    timer: Timer,
    budget_s: float,
    draws: Draws | None,
    *,
    baseline: str,
    margin: float,
    seed: int,
    stop_early: bool,
    threads: int | None,
    min_rounds: int,
    memory: str,
    end_s: float | None = None,
) -> dict[str, PairedRatio]:
    """Compare calls on one clock, until `end_s` on the performance counter or for `budget_s` from now."""
    end_s = time.perf_counter() + budget_s if end_s is None else end_s
    named = _ready(named, timer, noise_floor)
    hold_memory(memory)
    rounds = size_rounds(named, timer, baseline=baseline, seed=seed, sizing_s=min(SIZING_S, _SIZING_SHARE * budget_s))
    probed = named if isinstance(timer, HostTimer) and memory == GROWN else {}
    rules = _Rules(
        baseline=baseline,
        margin=margin,
        seed=seed,
        min_rounds=min_rounds,
        threads=_threads() if threads is None else threads,
        memory=memory,
        judged=tuple(name for name in named if name != baseline),
        faults={name: page_faults_without_room(candidate) for name, candidate in probed.items()},
        launching=_launching_shares(rounds, timer),
    )
    looks = LOOKS if stop_early else (1.0,)
    with take_large_room(memory):
        planned, doubts = _plan_groups(rounds, rules, draws, left_s=end_s - time.perf_counter())
        if draws is not None and planned > 1:
            if stop_early:  # each after the group in which it falls
                looks = tuple(sorted({max(_LEAST_GROUPS, math.ceil(look * planned)) / planned for look in LOOKS}))
            look, doubts = _measure_groups(rounds, rules, looks, draws, planned, end_s=end_s)
        else:
            look = _measure(rounds, rules, looks, end_s=end_s)
    if rounds.elapsed_s > 1.25 * budget_s:
        took = f"{len(rounds.order)} rounds took {rounds.elapsed_s:.1f} s of {budget_s:.1f} s"
        doubts += (f"over budget: {took}; no more were run",)
    return _results(rounds, rules, rules.errors(look, looks), doubts)


def _ready(named: Mapping[str, Candidate], timer: Timer, noise_floor: Candidate | None) -> dict[str, Candidate]:
    """Make sure that the clock resolves each call, and add the noise floor."""
    for name, candidate in named.items():
        check_resolvable(name, candidate, timer)
    return dict(named) if noise_floor is None else {**named, _NOISE_FLOOR: noise_floor}


def _launching_shares(rounds: Rounds, timer: Timer) -> dict[str, float]:
    """Share of each candidate's time in which the host launches it; nothing where the clock times no launches."""
    if not isinstance(timer, CudaTimer | LaunchedTimer) or not timer.times_launches:
        return {}
    return {
        name: read_block(name, rounds.candidates[name], timer.launching_share, max(_LAUNCHED_AT_LEAST, calls))
        for name, calls in rounds.calls.items()
    }


def size_rounds(
    named: Mapping[str, Candidate], timer: Timer, *, baseline: str, seed: int, sizing_s: float = SIZING_S
) -> Rounds:
    """Size the blocks, read the processor time per call only where all are short, take alternating calls in pairs."""
    calls = block_sizes(named, timer, baseline=baseline, sizing_s=sizing_s)
    if isinstance(timer, HostTimer):  # alike for all: reading a clock disturbs the caches
        in_pairs = any(calls[name] > 1 and alternates(name, candidate, timer) for name, candidate in named.items())
        if in_pairs:
            calls = {name: max(_LEAST_IN_PAIRS, count) for name, count in calls.items()}
        timer = HostTimer(cpu_per_call=max(calls.values()) <= CPU_PER_CALL_UP_TO, in_pairs=in_pairs)
    return Rounds(named, timer, calls, seed)


def _check_parameters(budget_s: float, margin: float, noise_floor: object) -> None:
    if not (budget_s > 0.0 and math.isfinite(budget_s)):
        raise ParameterError(f"budget_s is {budget_s}; expected a finite number of seconds above 0")
    if not 0.0 <= margin < 1.0:
        raise ParameterError(f"margin is {margin}; expected a fraction in [0, 1), such as 0.002 for ±0.2 %")
    if noise_floor is not None and not isinstance(noise_floor, Candidate):
        raise ParameterError(
            f"noise_floor is {noise_floor!r}; expected a Candidate, which is a copy of the baseline on its own tensors"
        )


def _named(candidates: Candidates, baseline: str) -> dict[str, Candidate]:
    if baseline not in candidates:
        raise ParameterError(f"baseline '{baseline}' is not a candidate; candidates: {', '.join(candidates) or 'none'}")
    for name, call in candidates.items():
        if not isinstance(call, Candidate) and not callable(call):
            raise ParameterError(f"candidate '{name}' is a {type(call).__name__}; expected a call without arguments")
    return {name: call if isinstance(call, Candidate) else Candidate(call) for name, call in candidates.items()}


def _threads() -> int:
    torch = sys.modules.get("torch")
    return int(torch.get_num_threads()) if torch is not None else 1


def _measure(rounds: Rounds, rules: _Rules, looks: tuple[float, ...], *, end_s: float) -> int:
    """Add rounds until everything is settled or the time is up; return the index of the last look.

    The statistics at the end take time too, in proportion to the rounds: they are timed on the first part of the
    rounds, and as much is kept free.
    """
    left_s = end_s - time.perf_counter()
    rounds.run_until(_FIRST_PART * left_s, min_rounds=rules.min_rounds)
    part = min(1.0, max(_FIRST_PART, rounds.elapsed_s / left_s)) if left_s > 0.0 else 1.0
    analysis_s = _analysis_s(rounds, rules) / part
    planned_s = left_s - min(1.2 * analysis_s, _MOST_FOR_ANALYSIS * left_s)
    for look, fraction in enumerate(looks):
        rounds.run_until(fraction * planned_s, min_rounds=rules.min_rounds)
        if all(_settled(rounds, rules, name, rules.errors(look, looks)) for name in rules.judged):
            return look
    return len(looks) - 1


def _plan_groups(rounds: Rounds, rules: _Rules, draws: Draws | None, *, left_s: float) -> tuple[int, tuple[str, ...]]:
    """Return in how many placements to measure, after as many rounds as one needs; and a doubt where it is only one."""
    if draws is None:
        return 1, ()
    start_s = time.perf_counter()
    rounds.run_until(0.0, min_rounds=_IN_GROUP)
    round_s = max((time.perf_counter() - start_s) / _IN_GROUP, 1e-9)
    time_s = max(left_s, rules.min_rounds * round_s)  # which the least of rounds may exceed
    wanted = min(time_s / round_s // _IN_GROUP, max(MIN_BLOCKS, _GROUPS_A_SECOND * time_s))
    affordable = 1 + int(_SHARE_FOR_DRAWS * time_s / max(draws.cost_s, 1e-9))
    planned = int(min(wanted, affordable))
    least = _LEAST_GROUPS if wanted <= affordable else _LEAST_AFFORDED
    if planned >= least:
        return planned, ()
    why = "memory has no room to lay them elsewhere"
    if math.isfinite(draws.cost_s):
        needed = duration_text((least - 1) * draws.cost_s / _SHARE_FOR_DRAWS)
        why = f"laying them elsewhere takes {duration_text(draws.cost_s)} each time; with {needed} and more it is done"
    return 1, (f"one placement: copies of a tensor can differ by several per cent, and {why}",)


def _measure_groups(
    rounds: Rounds, rules: _Rules, looks: tuple[float, ...], draws: Draws, planned: int, *, end_s: float
) -> tuple[int, tuple[str, ...]]:
    """Measure one placement after the other; return the index of the last look, and doubts."""
    per_group, after = max(_IN_GROUP, math.ceil(rules.min_rounds / planned)), [round(look * planned) for look in looks]
    kept_s, cost_s = 0.0, draws.cost_s
    for done in range(planned):
        start_s, is_enough = time.perf_counter(), len(rounds.order) >= rules.min_rounds
        if done >= _LEAST_GROUPS and is_enough and start_s + cost_s + kept_s >= end_s:
            break
        if done:
            try:
                draws.draw()
            except Exception as error:  # noqa: BLE001 - what was measured is kept, whatever a new place raises
                return len(looks) - 1, (f"placement: drawn {done} times, then {type(error).__name__}: {error}",)
            rounds.begin_group()
            cost_s = time.perf_counter() - start_s
        to_come = planned - done - 1
        share_s = (end_s - time.perf_counter() - kept_s - to_come * cost_s) / (to_come + 1)
        least = per_group if done == 0 else len(rounds.order) + per_group
        rounds.run_until(rounds.elapsed_s + share_s if done else share_s, min_rounds=least)
        kept_s = kept_s or 1.2 * planned * _analysis_s(rounds, rules)
        if done + 1 in after and len(rounds.order) >= rules.min_rounds:
            errors = rules.errors(after.index(done + 1), looks)
            if all(_settled(rounds, rules, name, errors) for name in rules.judged):
                return after.index(done + 1), ()
    return len(looks) - 1, ()


def _analysis_s(rounds: Rounds, rules: _Rules) -> float:
    """Time the statistics of one candidate on the rounds that there are, once warm; return the seconds for all."""
    for _ in range(2):
        start_s = time.perf_counter()
        _result(rounds, rules, (ERROR_RATE, EQUIVALENCE_ALPHA), rules.judged[0], ())
    return (time.perf_counter() - start_s) * len(rules.judged)


def _settled(rounds: Rounds, rules: _Rules, name: str, errors: tuple[float, float]) -> bool:
    """Whether a verdict is reached and its interval is as narrow as the margin."""
    location = rounds.location(name, rules.baseline, choose_clock(rounds, name, rules.baseline))
    degrees = location.size - 1
    half = student_quantile(1.0 - CONFIDENCE, degrees) * location.standard_error
    verdict = decide(
        location.estimate,
        location.standard_error,
        margin=rules.margin,
        direction_t=student_quantile(errors[0], degrees),
        equivalence_t=student_quantile(errors[1], degrees),
    )
    return verdict != "undecided" and half <= math.log1p(rules.margin)


def _results(
    rounds: Rounds, rules: _Rules, errors: tuple[float, float], doubts: tuple[str, ...]
) -> dict[str, PairedRatio]:
    """Summarise every candidate; under the baseline's name its noise floor."""
    results: dict[str, PairedRatio] = {}
    if _NOISE_FLOOR in rules.judged:
        noise_floor = results[rules.baseline] = _result(rounds, rules, errors, _NOISE_FLOOR, doubts)
        doubts += _noise_floor_doubts(noise_floor)
    for name in rules.judged:
        if name != _NOISE_FLOOR:
            results[name] = _result(rounds, rules, errors, name, doubts)
    return results


def _result(
    rounds: Rounds, rules: _Rules, errors: tuple[float, float], name: str, doubts: tuple[str, ...]
) -> PairedRatio:
    clock = choose_clock(rounds, name, rules.baseline)
    taken = rounds.preempted_fraction((name, rules.baseline))
    ratio = paired_ratio(
        rounds.times_s[clock][name],
        rounds.times_s[clock][rules.baseline],
        baseline=rules.baseline,
        margin=rules.margin,
        seed=rules.seed,
        direction_error=errors[0],
        equivalence_error=errors[1],
        calls_per_block=rounds.calls[name],
        threads=rules.threads,
        clock=clock,
        elapsed_s=rounds.elapsed_s,
        preempted_fraction=taken,
        groups=rounds.groups,
        doubts=doubts
        + _load_doubts(clock, taken)
        + _memory_doubts(rounds, rules, name)
        + _launch_doubts({member: rules.launching.get(member, 0.0) for member in (name, rules.baseline)}),
    )
    return replace(ratio, page_faults_per_call=rounds.page_faults_per_call(name), memory=rules.memory)


def _memory_doubts(rounds: Rounds, rules: _Rules, name: str) -> tuple[str, ...]:
    """Say where a call takes fresh memory, or would have to in a process whose heap has no room for its blocks."""
    calls = []
    for member in (name, rules.baseline):  # the least of the clocks, as a busy machine spares one
        faults, here = rules.faults.get(member, 0.0), rounds.page_faults_per_call(member) or 0.0
        call_s = min(float(np.median(times[member])) for times in rounds.times_s.values())
        if max(faults, here) * _FAULT_S > _FAULTS_DOUBT * call_s:
            calls.append(
                f"a call of {member} had {here:,.0f} page faults, and {faults:,.0f} where the heap had no room"
            )
    if not calls or rules.memory != GROWN:
        return ()
    return (
        f"fresh memory: {'; '.join(calls)}: this differs from process to process by more than the interval says; "
        "--set processes=5 takes it in, --set memory=grown,kept shows its size",
    )


def _launch_doubts(shares: Mapping[str, float]) -> tuple[str, ...]:
    bound = [f"{100 * share:.0f} % of the time of {name}" for name, share in shares.items() if share > _LAUNCH_BOUND]
    if not bound:
        return ()
    return (
        f"launch-bound: the host took {' and '.join(bound)} to launch it while the GPU waited; fewer launches would "
        "change the ratio (compiled, or compare_latency(graph=True))",
    )


def _load_doubts(clock: str, taken: float) -> tuple[str, ...]:
    if taken < _PREEMPTED_DOUBT:
        return ()
    rests = "processor time, which does not count them" if clock == "cpu" else "the wall clock, which counts them"
    return (
        f"loaded machine: other processes interrupted {100 * taken:.0f} % of the blocks; the figure rests on {rests}",
    )


def _noise_floor_doubts(noise_floor: PairedRatio) -> tuple[str, ...]:
    if noise_floor.verdict not in ("faster", "slower"):
        return ()
    return (
        f"the noise floor is off: the baseline against itself gave {noise_floor.ratio:.4f} "
        f"[{noise_floor.ratio_low:.4f}, {noise_floor.ratio_high:.4f}], not 1 ± {noise_floor.margin:g}",
    )
