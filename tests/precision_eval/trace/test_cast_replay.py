"""Recording the casts of a fix, and applying them to a float64 model."""

import copy
from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from precision_eval.cases.base import BuiltCase
from precision_eval.cases.systems.system import System
from precision_eval.fixes import fix_by_id
from precision_eval.fixes.sites import wrap_site
from precision_eval.measure import system_drift
from precision_eval.trace import cast_replay
from precision_eval.trace.capture import observe
from precision_eval.trace.cast_replay import Cast, ReplayError, record_casts, run_in_float64, run_shifted


class Cached(System):
    """One float32 Linear, attention to a float16 cache that it writes the first two slots of, and a product."""

    def __init__(self, write="slice"):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.write = write
        self.linear = nn.Linear(8, 8)
        self.register_buffer("key", torch.randn((1, 1, 6, 8), generator=generator).half())
        self.register_buffer("slots", torch.arange(2))
        self.register_buffer("product", torch.randn((8, 4), generator=generator).half())

    def forward(self, x):
        x = self.linear(x)  # (1, 1, 2, 8)
        if self.write == "slice":
            self.key[:, :, :2] = x
        elif self.write == "setitem":
            self.key[:, :, self.slots] = x
        elif self.write == "index_copy":
            self.key.index_copy_(2, self.slots, x)
        else:
            self.key.transpose(0, 2).index_put_((self.slots,), x.transpose(0, 2))
        return F.scaled_dot_product_attention(x, key=self.key, value=self.key) @ self.product


def case_of(write="slice"):
    torch.manual_seed(5)
    return BuiltCase(Cached(write).eval(), (torch.randn(1, 1, 2, 8),))


def tape_of(built, fix_id):
    return record_casts(copy.deepcopy(built.model), built.inputs, agreement=fix_by_id(fix_id).agreement)


@pytest.mark.parametrize("write", ["slice", "setitem", "index_copy", "index_put"])
@pytest.mark.parametrize("fix_id", ["query_to_half", "kv_to_query", "autocast"])
def test_the_tape_agrees_with_the_trace(fix_id, write):
    built = case_of(write if fix_id != "autocast" else "slice")  # autocast casts no cache write, so others raise
    tape, output = tape_of(built, fix_id)
    counts = Counter((c.site, k.operand, str(k.before), str(k.after)) for c in tape for k in c.casts)
    with fix_by_id(fix_id).applied(copy.deepcopy(built.model)) as call:
        seen = observe(call, built.inputs)
    assert torch.equal(output, seen.output)
    assert counts == {
        (c["site"], c["operand"], f"torch.{c['from']}", f"torch.{c['to']}"): c["count"] for c in seen.casts
    }
    assert counts


def test_a_tape_by_hand():
    tape, _ = tape_of(case_of("setitem"), "query_to_half")
    down = {"before": torch.float32, "after": torch.float16}
    assert [(call.name, call.casts, call.output) for call in tape] == [
        ("linear", (), torch.float32),
        ("__setitem__", (Cast("value", **down),), None),
        ("scaled_dot_product_attention", (Cast("query", **down),), torch.float16),
        ("__matmul__", (), torch.float16),
    ]
    assert tape[2].shapes == (("query", (1, 1, 2, 8)), ("key", (1, 1, 6, 8)), ("value", (1, 1, 6, 8)))


def test_what_rounds():
    assert Cast("input", torch.float32, torch.bfloat16).rounds
    assert Cast("input", torch.bfloat16, torch.float16).rounds
    assert Cast("input", torch.float16, torch.bfloat16).rounds
    assert not Cast("input", torch.bfloat16, torch.float32).rounds


class Keywords(System):
    """A Linear whose operands, and the rounding of its weight, are known by hand."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[1 + 2**-12]]))

    def forward(self, x):
        return F.linear(input=x, weight=self.weight)


def test_operands_given_by_keyword_are_rounded_and_shifted():
    model, one = Keywords(), torch.ones(1, 1)
    tape, output = record_casts(model, (one.half(),), agreement="storage_to_activation")
    assert tape[0].casts == (Cast("weight", torch.float32, torch.float16),)
    exact, shifts = run_in_float64(model.in_float64(), (one.double(),), tape=tape)
    assert (float(output), float(exact)) == (1.0, 1.0)
    assert [float(shift) for shift in shifts] == [-(2**-12)]
    plain = run_shifted(model, (one,), dtype=torch.float32, tape=tape, shifts=(torch.tensor([[0.25]]),))
    assert float(plain) == 1.25 + 2**-12  # what is given is added, and nothing is rounded anew
    assert float(run_in_float64(model.in_float64(), (one.double(),))[0]) == 1 + 2**-12


def test_infinities_of_a_mask_are_not_shifted():
    mask = torch.zeros(2, 6).masked_fill(torch.arange(6) > 3, -torch.inf).bfloat16()

    class Masked(Cached):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", mask)

        def forward(self, x):
            return F.scaled_dot_product_attention(x, self.key, self.key, attn_mask=self.mask)

    built = BuiltCase(Masked().eval(), case_of().inputs)
    tape, _ = tape_of(built, "query_to_half")
    assert [cast.operand for cast in tape[0].casts] == ["query", "mask"]
    exact, shifts = run_in_float64(built.model.in_float64(), (built.inputs[0].double(),), tape=tape)
    assert exact.isfinite().all()
    assert not shifts[1].any()


def test_a_recorder_that_misses_a_site_is_caught(monkeypatch):
    original = cast_replay.CastRecorder.recorder

    def forgetful(self, site, function):
        return wrap_site(site, self.agreement, function) if site.site == "sdpa" else original(self, site, function)

    monkeypatch.setattr(cast_replay.CastRecorder, "recorder", forgetful)
    built = case_of()
    tape, _ = tape_of(built, "query_to_half")
    with pytest.raises(
        ReplayError, match=r"is scaled_dot_product_attention of query .* but __matmul__ .* was recorded"
    ):
        run_in_float64(built.model.in_float64(), (built.inputs[0].double(),), tape=tape)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda tape: (tape[1], tape[0], *tape[2:]), "must call the same operations"),
        (lambda tape: tape[:-1], "after the 3 site calls that were recorded"),
        (lambda tape: (*tape, tape[0]), "made 4 site calls, but 5 were recorded; the first one missing is linear"),
    ],
)
def test_a_tape_out_of_order_is_caught(monkeypatch, fault, message):
    def faulty(*args, **kwargs):
        tape, output = record_casts(*args, **kwargs)
        return fault(tape), output

    monkeypatch.setattr(system_drift, "record_casts", faulty)
    built = case_of()
    with fix_by_id("query_to_half").applied(copy.deepcopy(built.model)) as call:
        unsplit = system_drift.system_drift(built, call)
    assert unsplit.split is None
    (doubt,) = unsplit.doubts
    assert message in doubt
