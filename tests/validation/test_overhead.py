import math

import pytest
import torch

from precision_eval.fixes.catalog import fix_by_id
from validation.overhead import EXPERIMENT, edits, trials


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        (torch.tensor([math.nan]), torch.tensor([math.nan]), True),
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64), False),
        ((torch.ones(2), 3), (torch.ones(2), 3), True),
        ((torch.ones(2), 3), (torch.ones(2), 4), False),
        ([torch.ones(2)], [torch.ones(2), torch.ones(2)], False),
        (torch.ones(2, 1), torch.ones(2), False),
        (torch.tensor(1.0), torch.tensor(1.0), True),
    ],
)
def test_bits(first, second, equal):
    assert trials.bits_equal(first, second) is equal


def test_capture_changes_nothing_on_a_small_case():
    passed = trials.same_trial("attention-prefill", "tiny", "kv_to_query", mode="eager")
    assert passed == {"passed": True, "same": dict.fromkeys(trials.CAPTURES, True), "left": 0}
    raised = trials.same_trial("attention-prefill", "tiny", "as_shipped", mode="eager")
    assert not raised["passed"]
    assert "same dtype" in raised["error"]


def test_a_capture_that_changes_an_output_is_caught(monkeypatch):
    monkeypatch.setitem(trials.CAPTURES, "trace", lambda call, inputs: call(*inputs) + 1e-7)
    found = trials.same_trial("attention-prefill", "tiny", "full_float32", mode="eager")
    assert found["same"]["trace"] is False
    assert found["same"]["probe"] is True


def test_harness_capture_on_and_capture_off_give_every_ratio():
    harness = trials.harness_trial(2e-5, budget_s=0.1, seed=0)
    assert set(harness) == {"wall", "cpu", "block"}
    on = trials.on_trial("attention-decode", "tiny", "kv_to_query", budget_s=0.1, seed=0)
    assert set(on) == {"trace", "probe", "both", "profiler"}
    off = trials.off_trial("attention-decode", "tiny", budget_s=0.1, seed=0)
    for found in (*harness.values(), *on.values(), off):
        assert found["low"] <= found["ratio"] <= found["high"]
    assert off["ratio"] < 2.0
    assert on["trace"]["ratio"] > 1.0


@pytest.mark.parametrize("model", edits.MODELS)
@pytest.mark.parametrize("fix", edits.EDITS)
def test_a_fix_computes_what_the_edit_computes(model, fix):
    kind, shape = edits.MODELS[model]
    shipped, written = kind(), kind(fix)
    written.load_state_dict(shipped.state_dict())
    x = torch.randn(shape)
    with fix_by_id(fix).applied(shipped) as call:
        assert torch.equal(call(x), written(x))
    with pytest.raises(RuntimeError, match="dtype"):
        shipped(x)


def test_an_edit_is_within_a_per_cent_or_two_microseconds():
    line = {"ratio": 1.05, "low": 1.04, "high": 1.06, "blocks": 100, "kind": "edit"}
    lines = [{**line, "key": f"edit {s}", "baseline_s": s} for s in (2e-5, 2e-4)]
    assert [figure.met for figure in EXPERIMENT.figures(lines)] == [True, False]


def trial(key, **found):
    return {"key": key, "kind": key.split()[0], **found}


def ratio(value, spread=0.0):
    return {"ratio": value, "low": value - spread, "high": value + spread, "blocks": 100}


@pytest.fixture
def lines():
    slow = {kind: ratio(3.2, 0.1) for kind in ("trace", "probe", "both", "profiler")}
    return [
        trial("harness 0.0001", wall=ratio(1.0005, 0.0002), cpu=ratio(1.002), block=ratio(1.05)),
        trial("off voice/default", **ratio(1.001, 0.002)),
        trial("on voice/default/kv_to_query", **(slow | {"trace": ratio(2.0, 0.1)})),
        trial("same a/b/c/eager", passed=True, same={"trace": True, "probe": False}, left=0),
        trial("same a/b/d/eager", passed=False, error="raised"),
    ]


def test_figures_against_targets(lines):
    found = EXPERIMENT.figures(lines)
    assert [figure.met for figure in found] == [True, False, False, True, True, False, False, False]
    assert found[-1].found == "1 of 2 bit-identical, 0 names or modes left behind"
    assert found[4].found == "2.00 [1.90, 2.10] (voice/default/kv_to_query)"
    across = trial("harness 0.001", wall=ratio(1.0, 0.002), cpu=ratio(1.0), block=ratio(1.0))
    assert [figure.met for figure in EXPERIMENT.figures([across])] == [False, True, True]
