"""Peaks of this machine: what holds on any processor; a planted clock; the whole of it only as a slow test."""

import itertools
import time

import pytest

from precision_eval.measure import peaks
from precision_eval.measure.peaks import DTYPES, least_time, measure_peaks, peaks_of


def test_the_least_time_is_of_the_call_alone():
    ticks = itertools.accumulate(itertools.cycle([1.0, 5.0, 1.0, 3.0]), initial=0.0)
    assert least_time(lambda: None, lambda: next(ticks), budget_s=20.0) == 1.0


def test_a_call_that_fills_the_budget_alone_is_made_once():
    ticks, calls = itertools.count(0.0, 3.0), []
    assert least_time(lambda: calls.append(1), lambda: next(ticks), budget_s=2.0) == 3.0
    assert len(calls) == 1


def test_the_best_of_the_rounds_counts(monkeypatch):
    """The planted fault: a machine that was busy for one round."""
    factors = itertools.chain([100.0], itertools.repeat(1.0))

    def probes(torch):
        yield ("bandwidth", 8, 8), next(factors)
        yield from (((kind, None, 0.0), 1.0) for kind in ("warm", "fresh", "calls"))

    monkeypatch.setattr(peaks, "_probes", probes)
    monkeypatch.setattr(peaks, "least_time", lambda call, clock: call)
    assert peaks._measured(None, time.process_time)["bandwidth"] == {8: 8.0}


def test_a_slower_call_has_a_longer_least_time():
    def busy(seconds):
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass

    short, long = (least_time(lambda s=s: busy(s), time.perf_counter, budget_s=0.01) for s in (1e-4, 1e-3))
    assert short < 0.5 * long


@pytest.fixture
def small(monkeypatch):
    for name, value in {
        "_FOOTPRINTS": (1 << 16, 1 << 18), "_WIDTHS": (32, 64), "_SLOTS": 64, "_HEADS": 2, "_SQUARE": 64,
        "_CAST_ELEMENTS": 4096, "_FRESH": 1 << 16, "_PROBE_S": 0.0, "_ROWS": (1, 4),
        "_STREAMED": 1 << 16, "_ROUNDS": 2, "_LAYERS": 2,
    }.items():  # fmt: skip
        monkeypatch.setattr(peaks, name, value)


KERNELS = ("product", "untransposed product", "attention")


def test_every_kernel_and_cast_is_measured_and_can_be_stored(small):
    found = measure_peaks("here")
    assert set(found.roofs) == {f"{kind} {dtype}" for kind in KERNELS for dtype in DTYPES}
    assert set(found.streams) == set(found.roofs)
    assert [len(found.roofs[f"{kind} float16"]) for kind in KERNELS] == [4, 4, 2]  # two widths of a weight
    assert len(found.casts) == 6
    assert all(rate > 0 for rate in [*found.bandwidth.values(), *found.flops.values(), *found.casts.values()])
    assert peaks_of(found.to_dict(), where="x").to_dict() == found.to_dict()
