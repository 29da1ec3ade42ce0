"""What is left out of the timing: copies that do not fit, and blocks far over the budget; and what a change saves."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from precision_eval.core.cells import SUITE_FAILED
from precision_eval.doctor import remedies
from precision_eval.doctor.diagnosis import Remedy
from precision_eval.doctor.examination import examine
from precision_eval.fixes.catalog import fix_by_id
from precision_eval.measure.float64_reference import Reference
from precision_eval.measure.model_calls import subject_of
from precision_eval.stats.doubts import MIN_BLOCKS

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


class Filling(nn.Linear):
    def forward(self, x):
        raise MemoryError("no room")


def test_want_of_memory_is_no_fault_of_the_fix():
    subject = subject_of(Filling(D, D), (torch.ones(2, D),))
    tried = remedies._try_fix(fix_by_id("bfloat16"), subject, trials())
    assert (tried.status, tried.reason) == ("out_of_memory", "no room")


class WidensItself(nn.Module):
    """Leaves its first layer in float32, so that a second call with the same input raises."""

    def __init__(self):
        super().__init__()
        self.encode, self.project = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x):
        if x.dtype is torch.float16 and self.encode.weight.dtype is torch.float16:
            encoded = self.encode(x)
            self.encode.float()
        else:
            encoded = self.encode(x)
        return self.project(encoded.to(self.encode.weight.dtype))


def test_what_runs_only_once_cures_nothing():
    tried = {one.fix: one for one in examine(WidensItself().half(), torch.ones(2, D).half(), latency=False).remedies}
    assert tried["full_float32"].cures
    assert not tried["suggested change"].cures
    assert "once it has run, it raises" in tried["suggested change"].reason


def test_a_slip_of_the_suite_is_said_to_be_one(subject, monkeypatch):
    monkeypatch.setattr(remedies, "_apply_fix", lambda fix, model: None)
    tried = remedies._try_fix(fix_by_id("bfloat16"), subject, trials())
    assert tried.status == "crashed"
    assert tried.reason.startswith(SUITE_FAILED)
    assert remedies._rank([tried, remedy("autocast")])[-1] == tried


def test_bytes_of_copies_side_by_side_by_hand(subject):
    own = 4 * D * D + 4 * 2 * D  # weights and the input, once
    assert remedies._needed_bytes(subject, [remedy("autocast"), remedy("autocast")]) == 2 * own + 64
    held = [remedy("full_float32"), remedy("autocast", allocated_peak_bytes=100)]
    assert remedies._needed_bytes(subject, held) == 2 * own + 256 + 100


def test_copies_that_do_not_fit_are_not_timed(subject, compared, monkeypatch):
    clock(monkeypatch, 1e-3)
    found = [remedy("full_float32"), remedy("autocast")]
    needed = remedies._needed_bytes(subject, found)
    same, doubts = remedies._time_cures(subject, found, trials(available_bytes=needed - 1), {})
    assert (same, compared) == (found, [])
    assert len(doubts) == 1
    assert doubts[0].startswith("latency was not measured: copies of the model for 2 fixes side by side need")
    remedies._time_cures(subject, found, trials(available_bytes=needed), {})
    assert compared == [["full_float32", "autocast"]]


def test_blocks_far_over_the_budget_are_not_timed(subject, compared, monkeypatch):
    found = [remedy("full_float32"), remedy("autocast")]
    most_s = remedies.OVER_BUDGET * 0.5 / (2 * MIN_BLOCKS)  # a call of each, at which the limit is reached
    clock(monkeypatch, 1.01 * most_s)
    same, doubts = remedies._time_cures(subject, found, trials(), {})
    assert (same, compared) == (found, [])
    assert doubts == (
        f"latency was not measured: {MIN_BLOCKS} blocks of each fix take 5.05 s or more, 0.5 s are allowed",
    )
    clock(monkeypatch, 0.99 * most_s)
    remedies._time_cures(subject, found, trials(), {})
    assert compared == [["full_float32", "autocast"]]


class WideScale(nn.Module):
    """A float32 constant in a bfloat16 model: it promotes what follows, and nothing raises."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.projection = nn.Linear(D, D, bias=False).bfloat16()
        self.scale = torch.full((D,), 0.5, dtype=dtype)

    def forward(self, x):
        return self.projection(x) * self.scale


@pytest.mark.parametrize(
    ("verdict", "ratio"), [("faster", (0.8, 0.7, 0.9)), ("equivalent", (None, None, None))], ids=["faster", "noise"]
)
def test_a_silent_promotion_has_the_price_of_its_change(monkeypatch, verdict, ratio):
    asked = []

    def compare(candidates, *, baseline, **_):
        asked.append((baseline, [type(candidate.call.func.model).__name__ for candidate in candidates.values()]))
        timed = SimpleNamespace(ratio=0.8, ratio_low=0.7, ratio_high=0.9, verdict=verdict, doubts=())
        return {name: timed for name in candidates if name != baseline}

    monkeypatch.setattr(remedies, "compare_latency", compare)
    diagnosis = examine(WideScale(), torch.ones(2, D).bfloat16())
    assert diagnosis.status == "passed"
    verified = [patch for patch in diagnosis.patches if patch.verified]
    assert verified
    assert asked[-1] == (remedies.AS_IT_IS, ["WideScale"] * (1 + len(verified)))
    for patch in verified:
        price = patch.price
        place = remedies.LAYOUT if patch.code else 0.0
        widened = ratio[:1] + (ratio[1:] if ratio[1] is None else (ratio[1] * (1 - place), ratio[2] * (1 + place)))
        assert (price.latency_ratio, price.latency_low, price.latency_high) == widened
        assert price.relative_error > 0
        assert f"measured: {price}" in str(patch)
    stored = next(patch.price for patch in verified if patch.code)
    # of 2 × D: in bfloat16, widened for the product, the product in float32; afterwards the two in bfloat16
    assert stored.saved_bytes == 2 * D * (2 + 4 + 4) - 2 * D * (2 + 2)


def test_a_clean_model_and_one_that_raises_have_no_price(compared):
    clean = examine(WideScale(torch.bfloat16), torch.ones(2, D).bfloat16())
    raised = examine(nn.Linear(D, D).half(), torch.ones(2, D))
    assert clean.patches == ()
    assert raised.patches
    assert all(patch.price is None for patch in raised.patches)
    assert all(remedies.AS_IT_IS not in names for names in compared)


def test_what_changes_neither_time_nor_bytes_has_no_price():
    same = remedy("as it is")
    timed = SimpleNamespace(ratio=1.01, ratio_low=0.99, ratio_high=1.03, verdict="equivalent")
    assert remedies._price(timed, same, same, 0.0) is None
    dearer = replace(same, allocated_peak_bytes=128)
    assert remedies._price(timed, dearer, same, 0.0).saved_bytes == -64


def test_changes_are_timed_as_fixes_are_without_autograd(monkeypatch):
    graded = []

    class Recording(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(D, D).half())

        def forward(self, x):
            graded.append(torch.is_grad_enabled())
            return x @ self.weight

    def compared(candidates, **_):
        graded.clear()
        for candidate in candidates.values():
            with candidate.block():
                candidate.call()
        assert len(graded) == len(candidates) > 2
        assert not any(graded)
        return {}

    monkeypatch.setattr(remedies, "compare_latency", compared)
    assert any(remedy.fix == "suggested change" for remedy in examine(Recording(), torch.ones(2, D)).remedies)
