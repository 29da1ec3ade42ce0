"""Trials on a real card, run on the CPU: what is planted, what is counted, and a machine without a card."""

import pytest
import torch

from precision_eval.core.errors import UnsupportedError
from validation import gate
from validation.frame import Options
from validation.latency import card


@pytest.mark.parametrize("kind", card.KINDS)
@pytest.mark.parametrize("tensors", card.TENSORS)
def test_the_slowed_call_has_a_hundredth_more_to_do_on_tensors_as_asked(kind, tensors):
    base, slowed = card.calls_of(kind, tensors, "plus1", "cpu")
    assert slowed().numel() / base().numel() == pytest.approx(1.01, abs=0.005)
    both = [call.args[0].untyped_storage().data_ptr() for call in card.calls_of(kind, tensors, "none", "cpu")]
    assert (both[0] == both[1]) == (tensors == "shared")


def line(said, low, high, **keys):
    data = {"tensors": "own", "fault": "none", "clock": "graph", "do_bench": None, "key": "card/x"}
    return {**data, "said": said, "low": low, "high": high, **keys}


def test_shares_are_counted_apart_for_equal_and_slowed_calls():
    lines = [
        line("equivalent", 0.99, 1.01, do_bench=1.006),
        line("slower", 1.01, 1.02, do_bench=1.001),
        line("slower", 1.0, 1.02, fault="plus1"),
        line("undecided", 0.99, 1.02, fault="plus1"),
    ]
    shares = {figure.name.rpartition(": ")[2]: figure.found for figure in card.EXPERIMENT.figures(lines)}
    assert all(value.startswith("50.0 %") for value in shares.values())
    assert len(shares) == 3


def test_a_trial_runs_where_there_is_no_card_and_is_refused_where_one_is_asked_for(tmp_path, monkeypatch):
    data = card._judge(("cpu", 0.05, 0, "copy", "shared", "none", "launched"))
    assert data["low"] <= data["ratio"] <= data["high"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UnsupportedError, match="no CUDA device"):
        card._trials({"device": "cuda", "trials": 1, "budget_s": 0.1})
    gates = {"device": "cuda", "faults": ("none",), "processes": 1, "budget_s": 1.0, "beside": "", "equal": 1}
    with pytest.raises(UnsupportedError, match="no CUDA device"):
        gate._trials(Options(out=None, settings=gates))
