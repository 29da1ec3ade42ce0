"""compare_latency: interleaving, blocks, looks, budget, clocks, doubts; a clock that we drive makes figures exact."""

import contextlib
import gc
import itertools
import math
import mmap
import platform
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from precision_eval.core.errors import ParameterError
from precision_eval.core.workers import call_isolated
from precision_eval.measure import allocator, blocks, latency, timers
from precision_eval.measure.allocator import page_faults_without_room
from precision_eval.measure.blocks import Candidate, Rounds, alternates, block_sizes, choose_clock
from precision_eval.measure.latency import compare_latency, size_rounds
from precision_eval.measure.timers import COUNTED_EVERY, HostTimer, RawBlock, blocks_of
from precision_eval.stats.paired import paired_log_ratios
from precision_eval.stats.robust import student_location
from tests.support.executor_calls import doubts_about_fresh_memory


class FakeTimer:
    """A clock on which each candidate's call lasts what it returns, times noise and a drift that all share."""

    clocks = ("fake",)

    def __init__(self, drift_per_call: float = 0.0, noise: float = 0.0) -> None:
        self.drift_per_call, self.noise = drift_per_call, noise
        self.calls = 0
        self.blocks: list[tuple[float, int]] = []
        self.rng = np.random.default_rng(0)

    def __call__(self, call, calls):
        samples = []
        for _ in range(calls):
            self.calls += 1
            factor = (1.0 + self.drift_per_call * self.calls) * math.exp(self.noise * self.rng.normal())
            samples.append(call() * factor)
        self.blocks.append((samples[0], calls))
        return {"fake": np.array(samples)}


class TwoClocks(FakeTimer):
    """Processor time as the call says; wall time is delayed in most calls by other processes."""

    clocks = ("wall", "cpu")

    def __init__(self, preempted):
        super().__init__(noise=1e-4)
        self.preempted = preempted

    def __call__(self, call, calls):
        cpu = super().__call__(call, calls)["fake"]
        wall = cpu + (self.rng.exponential(5e-3, size=calls) if self.preempted else 0.0)
        return {"wall": wall, "cpu": cpu}


@pytest.fixture
def two_clocks(monkeypatch):
    """Makes such a clock, and has every block counted as the test says."""

    def made(*, preempted=True, waits=0, other_threads=0.0):
        counted = {"preemptions": int(preempted), "waits": waits, "other_threads": other_threads}

        def counted_blocks(readings):
            return replace(blocks_of(readings), **{k: np.full(len(readings), count) for k, count in counted.items()})

        monkeypatch.setattr(blocks, "blocks_of", counted_blocks)
        return TwoClocks(preempted)

    return made


def candidates(**seconds):
    return {name: Candidate(lambda value=value: value) for name, value in seconds.items()}


def compare(timer=None, **options):
    seconds = {
        name: options.pop(name)
        for name in list(options)
        if isinstance(options[name], float) and name != "margin" and name not in ("budget_s",)
    }
    return compare_latency(
        candidates(**seconds), **({"baseline": "base", "budget_s": 1e-6, "timer": timer or FakeTimer()} | options)
    )


def rounds(timer=None, *, n=60, **seconds):
    named = candidates(**seconds)
    found = Rounds(named, timer or FakeTimer(), dict.fromkeys(named, 3), seed=0)
    found.run_until(0.0, min_rounds=n)
    return found


def test_exact_on_a_driven_clock():
    found = compare(base=1e-3, twice=2e-3)
    assert list(found) == ["twice"]
    assert found["twice"].ratio == pytest.approx(2.0)
    assert found["twice"].verdict == "slower"
    assert (found["twice"].blocks, found["twice"].clock) == (12, "fake")


@pytest.mark.parametrize(("call_s", "calls"), [(1e-5, 51), (2e-4, 3), (1e-3, 3), (5e-3, 1)])
def test_blocks_are_sized_to_the_call(call_s, calls):
    assert block_sizes(candidates(a=call_s), FakeTimer(), baseline="a") == {"a": calls}


def test_drift_of_the_machine_cancels():
    found = compare(FakeTimer(drift_per_call=1e-3), base=6e-3, more=6.6e-3, min_rounds=80)["more"]
    assert found.ratio == pytest.approx(1.1, rel=2e-3)
    assert max(found.block_median_s) > 1.1 * min(found.block_median_s)


def test_order_is_random_and_complete():
    order = rounds(a=1.0, b=1.0, c=1.0).order
    assert all(sorted(names) == ["a", "b", "c"] for names in order)
    assert set(order) == set(itertools.permutations("abc"))
    assert rounds(a=1.0, b=1.0, c=1.0).order == order


def test_nothing_is_dropped():
    values = itertools.chain(itertools.repeat(1.0, 9), [1e3] * 3, itertools.repeat(1.0))
    found = Rounds({"a": Candidate(lambda: next(values))}, FakeTimer(), {"a": 3}, seed=0)
    found.run_until(0.0, min_rounds=12)
    assert len(found.times_s["fake"]["a"]) == 12
    assert max(found.times_s["fake"]["a"]) == 1e3


def test_block_context_surrounds_each_block_and_is_not_timed():
    entered = []

    @contextlib.contextmanager
    def block():
        entered.append("in")
        yield
        entered.append("out")

    def call():
        assert entered[-1] == "in"
        return 1.0

    timer, candidate = FakeTimer(), Candidate(call, block)
    compare_latency({"a": candidate}, baseline="a", budget_s=1e-9, noise_floor=candidate, check=False, timer=timer)
    assert entered == ["in", "out"] * len(timer.blocks)


class FakeClock:
    """The time that blocks, checks and statistics take; nothing else moves it."""

    def __init__(self, monkeypatch):
        self.now_s = 100.0
        for module in (blocks, latency):
            monkeypatch.setattr(module, "time", self)

    def perf_counter(self):
        return self.now_s

    def candidate(self, call_s):
        def call():
            self.now_s += call_s
            return call_s

        return Candidate(call)

    def slow(self, monkeypatch, module, name, seconds):
        """Let a function take time on this clock."""
        original = getattr(module, name)

        def slowed(*args, **options):
            self.now_s += seconds
            return original(*args, **options)

        monkeypatch.setattr(module, name, slowed)


class TestBookkeeping:
    def test_blocks_are_evaluated_a_slice_at_a_time(self, monkeypatch):
        """On a clock that only the calls move, half a second is run without anything between the blocks."""
        clock, evaluated = FakeClock(monkeypatch), []
        named = {"a": clock.candidate(1e-4), "b": clock.candidate(1e-4)}
        monkeypatch.setattr(blocks, "blocks_of", lambda raw: evaluated.append(len(raw)) or blocks_of(raw))
        made = Rounds(named, FakeTimer(), dict.fromkeys(named, 5), seed=0)
        made.run_until(1.0)
        assert len(made.order) == len(made.times_s["fake"]["a"]) == len(made.waited["b"]) == 1000
        assert sum(evaluated) == 2000
        assert len(evaluated) <= 6  # 2 candidates × 2 slices, one more where a sum of floats falls short

    @pytest.mark.parametrize(("cpu_per_call", "counted"), [(True, 40), (False, 40 / COUNTED_EVERY)])
    def test_rounds_of_many_short_calls_are_counted_now_and_then(self, cpu_per_call, counted):
        made = Rounds({"a": Candidate(lambda: 1.0)}, HostTimer(cpu_per_call=cpu_per_call), {"a": 3}, seed=0)
        made.run_until(0.0, min_rounds=40)
        assert len(made.times_s["cpu"]["a"]) == 40
        assert len(made.page_faults["a"]) == len(made.preempted["a"]) == counted

    def test_order_does_not_depend_on_the_slices(self, monkeypatch):
        clock = FakeClock(monkeypatch)
        fast, slow = ({name: clock.candidate(call_s) for name in "abc"} for call_s in (1e-5, 0.3))
        orders = []
        for named in (fast, slow):
            made = Rounds(named, FakeTimer(), dict.fromkeys(named, 1), seed=3)
            made.run_until(0.0, min_rounds=300)
            orders.append(made.order)
        assert orders[0] == orders[1]

    @pytest.mark.parametrize("enabled", [True, False])
    def test_the_collector_is_off_in_every_block_and_then_as_before(self, enabled):
        states, was_enabled = [], gc.isenabled()
        candidate = Candidate(lambda: states.append(gc.isenabled()) or 1.0)
        (gc.enable if enabled else gc.disable)()
        try:
            made = Rounds({"a": candidate}, HostTimer(), {"a": 3}, seed=0)
            made.run_until(0.0, min_rounds=20)
            assert (set(states), gc.isenabled()) == ({False}, enabled)
        finally:
            (gc.enable if was_enabled else gc.disable)()

    def test_the_host_evaluates_many_blocks_as_one_by_one(self):
        """Hand-made counters: one block preempted, one that waited and was half on other threads, one not counted."""

        def usage(waits, preemptions, faults=0):
            return SimpleNamespace(ru_nvcsw=waits, ru_nivcsw=preemptions, ru_minflt=faults)

        raw = [
            RawBlock([1, 3, 90], None, 30, 30, usage(0, 0), usage(0, 2)),
            RawBlock([9, 9, 9], None, 90),
            RawBlock([6, 5, 7], None, 60, 30, usage(4, 7, 10), usage(5, 7, 16)),
        ]
        made = HostTimer().blocks(raw)
        assert made.times_s["wall"] == pytest.approx([3e-9, 9e-9, 6e-9])
        assert made.times_s["cpu"] == pytest.approx([10e-9, 30e-9, 20e-9])
        assert made.preemptions.tolist() == [2, 0]
        assert made.waits.tolist() == [0, 1]
        assert made.other_threads.tolist() == [0.0, 0.5]
        assert made.page_faults.tolist() == [0.0, 2.0]


def test_page_faults_of_a_call_are_in_the_ratio():
    """A call that maps 64 fresh pages and touches each, beside one that maps none."""

    def mapping():
        with mmap.mmap(-1, 64 * mmap.PAGESIZE) as fresh:
            for page in range(64):
                fresh[page * mmap.PAGESIZE] = 1
        return 1

    named = {"none": lambda: sum(range(2000)), "maps": mapping}
    ratio = compare_latency(named, baseline="none", budget_s=0.05, noise_floor=Candidate(lambda: sum(range(2000))))
    assert ratio["maps"].page_faults_per_call >= 4  # 64 where pages are not faulted in together
    assert ratio["none"].page_faults_per_call < 1
    assert ratio["maps"].memory == "grown"
    assert compare(base=1e-3, twice=2e-3)["twice"].page_faults_per_call is None


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries place large blocks by other rules")
@pytest.mark.slow
def test_a_block_beyond_the_largest_threshold_is_a_doubt():
    """Whether 34 MiB find room in the heap is this process's own; blocks of 1 MiB are kept in every process."""
    (doubt,), small = call_isolated(doubts_about_fresh_memory, (34, 1), start="spawn")  # a heap of no other test's
    assert "a call of copies had" in doubt
    assert "call of none" not in doubt
    assert small == []


def test_a_call_that_settles_after_many_takes_no_fresh_memory(monkeypatch):
    """It maps 16 pages at each of its first calls and then none, as where each call cuts a place of the heap short."""
    monkeypatch.setattr(allocator, "_PROBE_S", 60.0)  # a busy machine may take the processor for long
    made = []

    def touches():
        if len(made) < settles_after:
            made.append(mmap.mmap(-1, 16 * mmap.PAGESIZE))
            for page in range(16):
                made[-1][page * mmap.PAGESIZE] = 1

    settles_after = 12
    assert page_faults_without_room(Candidate(touches)) < 1
    made.clear()
    settles_after = 1000
    assert page_faults_without_room(Candidate(touches)) >= 1  # 16 where pages are not faulted in together


class TestBudget:
    """Everything is inside the budget, on a clock that stands still but for what is planted."""

    def elapsed_s(self, clock, **options):
        start_s = clock.now_s
        named = {"base": clock.candidate(1e-3), "same": clock.candidate(1e-3)}
        ratio = compare_latency(named, baseline="base", budget_s=2.0, timer=FakeTimer(), stop_early=False, **options)
        return clock.now_s - start_s, ratio["same"]

    def test_nothing_but_rounds(self, monkeypatch):
        elapsed_s, ratio = self.elapsed_s(FakeClock(monkeypatch))
        assert 1.9 < elapsed_s <= 2.2
        assert ratio.elapsed_s > 1.7

    def test_sizing_and_statistics(self, monkeypatch):
        clock = FakeClock(monkeypatch)
        clock.slow(monkeypatch, latency, "block_sizes", 0.4)
        original = latency.paired_ratio

        def in_proportion(candidate_s, baseline_s, **options):
            clock.now_s += 4e-4 * len(candidate_s)
            return original(candidate_s, baseline_s, **options)

        monkeypatch.setattr(latency, "paired_ratio", in_proportion)
        elapsed_s, ratio = self.elapsed_s(clock)
        assert 1.7 < elapsed_s <= 2.2
        assert ratio.elapsed_s < 1.6

    def test_planted_statistics_outside_the_budget_are_caught(self, monkeypatch):
        clock = FakeClock(monkeypatch)
        monkeypatch.setattr(latency, "_analysis_s", lambda rounds, rules: 0.0)
        clock.slow(monkeypatch, latency, "paired_ratio", 0.4)
        assert self.elapsed_s(clock)[0] > 2.2


def test_looks_stop_when_settled(monkeypatch):
    clock = FakeClock(monkeypatch)
    named = {"base": clock.candidate(5e-3), "cand": clock.candidate(6e-3)}
    found = compare_latency(named, baseline="base", budget_s=20.0, timer=FakeTimer(noise=0.002))["cand"]
    assert found.verdict == "slower"
    assert found.elapsed_s < 15.0
    assert found.ratio_high / found.ratio_low < 1.0045  # within ± margin, not merely settled


class TestClock:
    def test_processor_time_where_calls_are_delayed(self, two_clocks):
        found = compare(two_clocks(), base=5e-3, more=5.05e-3, min_rounds=200)["more"]
        assert (found.clock, found.verdict) == ("cpu", "slower")
        assert found.ratio == pytest.approx(1.01, abs=1e-3)
        assert "interrupted 100 % of the blocks; the figure rests on processor time" in found.doubts[-1]

    def test_wall_clock_where_nothing_disturbs(self, two_clocks):
        found = compare(two_clocks(preempted=False), base=5e-3, more=5.05e-3)["more"]
        assert found.clock == "wall"

    @pytest.mark.parametrize("spoilt", [{"waits": 1}, {"other_threads": 0.5}])
    def test_wall_clock_where_processor_time_means_something_else(self, two_clocks, spoilt):
        found = compare(two_clocks(**spoilt), base=5e-3, more=5.05e-3)["more"]
        assert found.clock == "wall"
        assert "which counts them" in found.doubts[-1]

    def test_delay_dilutes_the_wall_clock(self, two_clocks):
        """The planted fault: the same samples, judged on the wall clock, hide two thirds of a 20 % change."""
        timer = two_clocks()
        found = rounds(timer, n=400, base=5e-3, more=6e-3)
        assert choose_clock(found, "more", "base") == "cpu"
        wall = np.median(np.log(found.times_s["wall"]["more"]) - np.log(found.times_s["wall"]["base"]))
        assert wall < 0.7 * math.log(1.2)


def test_null_that_is_off_is_a_doubt():
    found = compare(base=6e-3, other=6e-3, noise_floor=Candidate(lambda: 6.6e-3))
    assert list(found) == ["base", "other"]
    assert found["base"].ratio == pytest.approx(1.1)
    assert any("the noise floor is off" in doubt for doubt in found["other"].doubts)
    calm = compare(base=6e-3, other=6e-3, noise_floor=Candidate(lambda: 6e-3))
    assert not any("the noise floor" in doubt for doubt in calm["other"].doubts)


def test_error_rate_is_shared_by_the_candidates():
    wide = {f"c{index}": 5e-3 for index in range(20)}
    one = compare(FakeTimer(noise=0.01), base=5e-3, c0=5e-3, min_rounds=100)["c0"]
    many = compare(FakeTimer(noise=0.01), base=5e-3, **wide, min_rounds=100)["c0"]

    def widening(found):
        return math.log(found.verdict_high / found.verdict_low) / math.log(found.ratio_high / found.ratio_low)

    assert widening(many) > 1.2 * widening(one)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"baseline": "c"}, "baseline 'c' is not a candidate; candidates: base, b"),
        ({"candidates": candidates(base=1.0)}, "'base' is the only candidate; give another"),
        ({"budget_s": 0.0}, "budget_s is 0"),
        ({"budget_s": float("nan")}, "budget_s is nan"),
        ({"margin": -0.1}, "margin is -0.1"),
        ({"noise_floor": True}, "noise_floor is True; expected a Candidate"),
        ({"memory": "lost"}, "unknown state of memory 'lost'"),
    ],
)
def test_bad_parameters(options, match):
    with pytest.raises(ParameterError, match=match):
        compare_latency(**({"candidates": candidates(base=1.0, b=1.0), "baseline": "base", "budget_s": 1.0} | options))


class TestTwoStates:
    """Calls of which every second one lasts half as long again, on a clock that reads what they return."""

    def drive(self, monkeypatch, *, noise=0.01):
        rng = np.random.default_rng(0)
        timers.cpu_reading_s()  # kept, and not to be read on this clock

        def called(call, calls):
            return [round(1e9 * call() * math.exp(noise * rng.standard_normal())) for _ in range(calls)]

        monkeypatch.setattr(timers, "_wall", called)
        monkeypatch.setattr(timers, "_both", lambda call, calls: ((samples := called(call, calls)), samples))

    def calls(self, *states):
        turn = itertools.cycle(states)
        return Candidate(lambda: next(turn))

    def test_they_are_told_from_scatter(self, monkeypatch):
        self.drive(monkeypatch)
        assert alternates("a", self.calls(1e-4, 1.2e-4), HostTimer())
        assert not alternates("a", self.calls(1e-2, 1.2e-2), HostTimer())  # too long to find out
        scatter = [alternates("a", self.calls(1e-4), HostTimer()) for _ in range(200)]
        assert sum(scatter) <= 6

    @pytest.mark.parametrize("states", [(1e-4, 1.5e-4), (1e-4, 1e-4)])
    def test_a_block_of_them_is_the_mean_of_both(self, monkeypatch, states):
        self.drive(monkeypatch, noise=1e-3)
        named = {"a": self.calls(*states), "b": self.calls(*states)}
        made = size_rounds(named, HostTimer(), baseline="a", seed=0, sizing_s=0.0)
        assert made.timer.in_pairs is (states[0] != states[1])
        made.run_until(0.0, min_rounds=50)
        found = np.array(made.times_s["wall"]["a"])
        assert np.median(found) == pytest.approx(np.mean(states), rel=1e-3)
        assert found.std() < 2e-3 * np.mean(states)  # whole calls would be of one state or the other

    @pytest.mark.parametrize("offset", [0, 1])
    def test_equal_calls_that_begin_in_unlike_states_are_equal(self, monkeypatch, offset):
        """What a block's first call finds in the caches depends on the state that the block before ended in."""
        self.drive(monkeypatch, noise=1e-3)
        last = [0]

        def caller(begun):
            turn = itertools.count(begun)

            def call():
                state = next(turn) % 2
                same, last[0] = last[0] == state, state
                return (1e-4, 1.2e-4)[state] * ((1.0, 0.8)[state] if same else 1.0)

            return Candidate(call)

        named = {"a": caller(0), "b": caller(offset)}
        made = size_rounds(named, HostTimer(), baseline="a", seed=0, sizing_s=0.0)
        made.run_until(0.0, min_rounds=400)
        location = student_location(paired_log_ratios(made.times_s["wall"]["b"], made.times_s["wall"]["a"]))
        assert all(count % 2 for count in made.calls.values())
        assert abs(location.estimate) < 4.0 * location.standard_error < 4e-3
