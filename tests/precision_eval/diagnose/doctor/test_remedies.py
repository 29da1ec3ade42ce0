"""What is left out of the timing: copies that do not fit, and blocks that take far longer than allowed."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from precision_eval.diagnose.doctor import remedies
from precision_eval.diagnose.doctor.diagnosis import Remedy
from precision_eval.measure.float64_reference import Reference
from precision_eval.measure.model_calls import subject_of
from precision_eval.stats import MIN_BLOCKS

D = 8


@pytest.fixture
def subject():
    return subject_of(nn.Linear(D, D, bias=False), (torch.ones(2, D),))


@pytest.fixture
def compared(monkeypatch):
    """Names of the candidates of each comparison; nothing is timed."""
    calls = []
    monkeypatch.setattr(remedies, "compare_latency", lambda candidates, **_: calls.append(list(candidates)) or {})
    return calls


def trials(*, available_bytes=2**30, budget_s=0.5):
    return remedies.Trials(
        reference=Reference(None, ""), most_drift=0.1, compiles=False, times=True, budget_s=budget_s, repeats=True,
        available_bytes=available_bytes,
    )  # fmt: skip


def remedy(fix, *, stored_bytes=256, allocated_peak_bytes=64):
    return Remedy(
        fix=fix, title=fix, mode="eager", status="passed", cures=True, stored_bytes=stored_bytes,
        allocated_peak_bytes=allocated_peak_bytes,
    )  # fmt: skip


def clock(monkeypatch, call_s):
    """Make every call take so long by the clock."""
    ticks = itertools.count()
    monkeypatch.setattr(remedies, "time", SimpleNamespace(perf_counter=lambda: call_s * next(ticks)))


def test_bytes_of_copies_side_by_side_by_hand(subject):
    own = 4 * D * D + 4 * 2 * D  # weights and the input, once
    assert remedies._needed_bytes(subject, [remedy("autocast"), remedy("autocast")]) == 2 * own + 64
    held = [remedy("full_float32"), remedy("autocast", allocated_peak_bytes=100)]
    assert remedies._needed_bytes(subject, held) == 2 * own + 256 + 100


def test_copies_that_do_not_fit_are_not_timed(subject, compared, monkeypatch):
    clock(monkeypatch, 1e-3)
    found = [remedy("full_float32"), remedy("autocast")]
    needed = remedies._needed_bytes(subject, found)
    same, doubts = remedies._timed(subject, found, trials(available_bytes=needed - 1), {})
    assert (same, compared) == (found, [])
    assert len(doubts) == 1
    assert doubts[0].startswith("latency was not measured: copies of the model for 2 fixes side by side need")
    remedies._timed(subject, found, trials(available_bytes=needed), {})
    assert compared == [["full_float32", "autocast"]]


def test_blocks_far_over_the_budget_are_not_timed(subject, compared, monkeypatch):
    found = [remedy("full_float32"), remedy("autocast")]
    most_s = remedies.OVER_BUDGET * 0.5 / (2 * MIN_BLOCKS)  # a call of each, at which the limit is reached
    clock(monkeypatch, 1.01 * most_s)
    same, doubts = remedies._timed(subject, found, trials(), {})
    assert (same, compared) == (found, [])
    assert doubts == (
        f"latency was not measured: {MIN_BLOCKS} blocks of each fix take 5.05 s or more, 0.5 s are allowed",
    )
    clock(monkeypatch, 0.99 * most_s)
    remedies._timed(subject, found, trials(), {})
    assert compared == [["full_float32", "autocast"]]
