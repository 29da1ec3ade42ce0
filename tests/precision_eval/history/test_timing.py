"""Paired ratios to the baseline and to the anchor, through the comparison that every run uses."""

from contextlib import ExitStack

import pytest
from made_cells import cell as made_cell

from precision_eval.core.cells import failed, passed
from precision_eval.fixes.apply import AppliedFix
from precision_eval.history import timing
from precision_eval.history.tracking import FULL, NotApplicableError, TrackedCell

TINY = made_cell("latency", "full_float32", "bfloat16", options=FULL.options)


def test_without_the_baseline_the_anchor_is_left():
    data = {"ratio_to_baseline": None, "ratio_to_anchor": 2.0, "clock": "wall", "blocks": 15}
    gathered = timing._gathered("slow", [passed("slow", data), passed("slow", data)])
    assert gathered.data["ratio_to_anchor"] == [2.0, 2.0]
    assert gathered.data["missing"]["ratio_to_baseline"] == "the baseline full_float32 cannot be timed here"
    broken = timing._gathered("slow", [passed("slow", data), failed("slow", "raised", "no")])
    assert (broken.status, broken.reason) == ("raised", "no")


def test_a_fix_that_takes_longer_is_seen_in_both_ratios(monkeypatch):
    bind = AppliedFix.bind

    def repeating(self, *inputs):
        call = bind(self, *inputs)
        return (lambda: [call() for _ in range(20)][-1]) if self.fix.id == "bfloat16" else call

    before = timing.timed_once(TINY, 0)
    monkeypatch.setattr(AppliedFix, "bind", repeating)
    after = timing.timed_once(TINY, 0)
    for name in ("ratio_to_baseline", "ratio_to_anchor"):
        assert after["bfloat16"].data[name] > 5 * before["bfloat16"].data[name]
    assert after["full_float32"].data["blocks"] >= timing.MIN_ROUNDS
    assert 0.2 < after["full_float32"].data["ratio_to_baseline"] < 5.0  # of a copy of itself


def test_a_planted_anchor_ratio():
    from dataclasses import dataclass

    @dataclass
    class Ratio:
        ratio: float
        clock: str = "wall"
        blocks: int = 15

    ratios = {"full_float32": Ratio(1.01), "slow": Ratio(3.0), timing.ANCHOR: Ratio(0.5)}
    assert timing.ratio_data(ratios, "slow")["ratio_to_anchor"] == pytest.approx(6.0)
    assert timing.ratio_data(ratios, "full_float32")["ratio_to_anchor"] == pytest.approx(2.0)
    assert timing.ratio_data(ratios, "full_float32")["ratio_to_baseline"] == 1.01
    assert timing.ratio_data({"slow": Ratio(3.0)}, "slow")["ratio_to_baseline"] is None


def test_on_a_gpu_the_runs_own_latency_is_taken(monkeypatch, tmp_path):
    monkeypatch.setattr(timing.generic, "latency", lambda cell, run_dir: [(cell.device, run_dir)])
    assert timing.latency(made_cell("latency", "bfloat16", device="cuda:0"), tmp_path) == [("cuda:0", tmp_path)]


def test_on_a_gpu_another_tool_times_the_replay_to_its_end_or_says_why_there_is_none(monkeypatch):
    class Device:
        replay_doubts = ()

        def __init__(self, name):
            pass

        def generators(self, call):
            return []

        def warm_up(self, call):
            pass

        def capture(self, call):
            output = call()
            if refused:
                raise RuntimeError("operation not permitted")
            return lambda: (done.append("replayed"), output)[1]

    done, refused, place = [], False, TrackedCell(case="attention-decode", mode="cuda", size="tiny")
    monkeypatch.setattr(timing, "CudaDevice", Device)
    monkeypatch.setattr(TrackedCell, "device", "cpu")
    monkeypatch.setattr(timing.torch.cuda, "synchronize", lambda device: done.append("ended"))
    with ExitStack() as stack:
        call = timing.ready(place, "query_to_half", stack=stack)
        done.clear()  # of the comparison with the call
        call()
        assert done == ["replayed", "ended"]
        refused = True
        with pytest.raises(NotApplicableError, match=r"^no device time: capture refused.*not permitted"):
            timing.ready(place, "query_to_half", stack=stack)
