import numpy as np
import pytest
from made_cells import cell as made_cell

from precision_eval.core.cells import passed
from precision_eval.fixes.apply import AppliedFix
from precision_eval.history import timing
from precision_eval.history.tracking import FULL
from precision_eval.measure.blocks import Candidate, Rounds
from precision_eval.measure.timers import HostTimer, Reading
from precision_eval.stats import paired_ratio

TINY = made_cell("latency", "full_float32", "bfloat16", options=FULL.options)


def rounds_of(times_s):
    """Rounds with block times written by hand, on one clock."""
    names = list(times_s)
    made = Rounds({name: Candidate(lambda: None) for name in names}, HostTimer(("wall",)), dict.fromkeys(names, 1), 0)
    made.times_s["wall"] = {name: list(map(float, values)) for name, values in times_s.items()}
    return made


def test_a_ratio_is_the_location_within_rounds():
    drift = np.array([1.0, 2.0, 4.0, 8.0, 16.0])  # a machine that slows down: pairs do not see it
    made = rounds_of({"full_float32": drift, "slow": drift * [3.0, 3.0, 90.0, 3.0, 2.0], timing.ANCHOR: 2 * drift})
    found = timing._ratios(made, "slow")
    assert found["ratio_to_baseline"] == pytest.approx(3.0, rel=0.02)
    assert found["ratio_to_anchor"] == pytest.approx(1.5, rel=0.02)
    both = paired_ratio(made.times_s["wall"]["slow"], drift, baseline="b", margin=0.01, seed=0)
    assert found["ratio_to_baseline"] == both.ratio  # the one estimator of a run
    medians = np.median(drift * [3.0, 3.0, 90.0, 3.0, 2.0]) / np.median(drift)
    assert medians != 3.0  # the unpaired figure is another one


def test_the_baseline_is_held_to_its_twin():
    made = rounds_of({"full_float32": [2.0, 2.0], timing.TWIN: [1.0, 4.0], timing.ANCHOR: [1.0, 1.0]})
    assert timing._ratios(made, "full_float32")["ratio_to_baseline"] == pytest.approx(1.0)  # of 2 and 1/2


def test_without_the_baseline_the_anchor_is_left():
    made = rounds_of({"slow": [2.0, 2.0], timing.ANCHOR: [1.0, 1.0]})
    found = timing._ratios(made, "slow")
    assert found["ratio_to_baseline"] is None
    assert found["ratio_to_anchor"] == pytest.approx(2.0)
    gathered = timing.over_processes([{"slow": passed("slow", found)}, {"slow": passed("slow", found)}])["slow"]
    assert gathered.data["ratio_to_anchor"] == pytest.approx([2.0, 2.0])
    assert gathered.data["missing"]["ratio_to_baseline"] == "the baseline full_float32 cannot be timed here"


class CountingTimer:
    """A clock on which each call of a model takes a millisecond, and whatever calls none takes one too."""

    clocks = ("wall",)
    counted = 0

    def __init__(self, clocks=("wall",), *, cpu_per_call=True):
        pass

    def __call__(self, call, calls):
        samples = []
        for _ in range(calls):
            before = CountingTimer.counted
            call()
            samples.append(1e-3 * max(1, CountingTimer.counted - before))
        return Reading({"wall": np.array(samples)})


@pytest.mark.parametrize("repeats", [1, 3])
def test_a_fix_that_takes_longer_is_seen_in_both_ratios(monkeypatch, repeats):
    plain = AppliedFix.__call__

    def counting(self, *inputs):
        CountingTimer.counted += repeats if self.fix.id == "bfloat16" else 1
        return plain(self, *inputs)

    monkeypatch.setattr(AppliedFix, "__call__", counting)
    monkeypatch.setattr(timing, "HostTimer", CountingTimer)
    found = timing.timed_in_process(TINY, 0)
    for name in ("ratio_to_baseline", "ratio_to_anchor"):
        assert found["bfloat16"].data[name] == pytest.approx(repeats)
        assert found["full_float32"].data[name] == pytest.approx(1.0)
    assert found["full_float32"].data["blocks"] >= timing.MIN_ROUNDS
