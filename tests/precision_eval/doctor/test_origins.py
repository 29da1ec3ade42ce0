"""Where a stray dtype comes from: a literal cast, a `dtype=` argument, float8 storage; updates that a format loses."""

import pytest
import torch
from torch import nn

from precision_eval.doctor.examination import examine


class CastsByHand(nn.Module):
    """A stage that casts to bfloat16 whatever its weights are in."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 48)
        self.up = nn.Linear(48, 96)

    def forward(self, codes):
        h = self.embed(codes)
        noise = torch.linspace(-1, 1, h.numel()).view_as(h).to(torch.bfloat16)
        return self.up(h.to(torch.bfloat16) + noise)


class ReadsFirstParameter(nn.Module):
    """A cache whose dtype was read off one parameter, which is wider than the others."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(16, 8, bias=False)
        self.key = nn.Linear(16, 16).bfloat16()
        self.dtype = next(self.parameters()).dtype

    def forward(self, x, at):
        keys = torch.zeros(1, 8, 16, dtype=self.dtype)
        keys.index_copy_(1, at, self.key(x))
        keys.index_copy_(1, at + 1, self.key(x))
        return self.head(keys.float())


class StoresFloat8(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(3, 16).to(torch.float8_e4m3fn), requires_grad=False)
        self.lin = nn.Linear(16, 16).bfloat16()

    def forward(self, x):
        return self.lin(x) * (self.table[0] + 1)


class Updates(nn.Module):
    """One step of an optimizer, in place or returned."""

    def __init__(self, dtype, step, *, in_place):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1, 64).reshape(8, 8).to(dtype))
        self.step, self.in_place = step, in_place

    def forward(self, grad):
        if not self.in_place:
            return self.weight - self.step * grad
        self.weight.sub_(grad, alpha=self.step)
        return grad


def test_a_literal_cast_is_taken_out_where_that_keeps_more_digits_than_a_cast_at_the_symptom():
    torch.manual_seed(0)
    patch = examine(CastsByHand().half().eval(), torch.arange(9)[None], latency=False).patch
    assert patch.verified
    assert "+        noise = torch.linspace(-1, 1, h.numel()).view_as(h).to(self.embed.weight.dtype)" in patch.diff
    assert "+        return self.up(h + noise)" in patch.diff


def test_a_dtype_argument_is_followed_to_what_it_was_read_from():
    diagnosis = examine(ReadsFirstParameter().eval(), torch.randn(1, 3, 16).bfloat16(), torch.arange(3), latency=False)
    (cache, _) = diagnosis.raised.operands
    assert "dtype=self.dtype, set to next(self.parameters()).dtype" in cache.brought_by
    assert "dtype=self.key.weight.dtype" in diagnosis.patch.diff
    assert diagnosis.patch.verified


def test_float8_is_storage_and_the_operation_refuses_it():
    diagnosis = examine(StoresFloat8().eval(), torch.randn(2, 16).bfloat16(), latency=False)
    assert diagnosis.base_dtype == "bfloat16"
    assert (diagnosis.status, diagnosis.raised.op) == ("raised", "add")
    assert diagnosis.patch.verified
    assert ".to(" in diagnosis.patch.diff


# A step of 1e-4 of weights near 1: bfloat16's neighbours are 2^-8 apart, so nearly all of it is lost.
@pytest.mark.parametrize("in_place", [True, False])
def test_an_update_is_held_to_what_it_changes(in_place):
    lossy = examine(Updates(torch.bfloat16, 1e-4, in_place=in_place), torch.ones(8, 8).bfloat16(), latency=False)
    (fault,) = lossy.faults
    assert "of the update of weight is lost" in fault.reason
    assert [remedy.fix for remedy in lossy.remedies if remedy.cures and remedy.fix != "stored otherwise"] == [
        "full_float32"
    ]
    exact = examine(Updates(torch.float32, 1e-4, in_place=in_place), torch.ones(8, 8), latency=False)
    assert exact.faults == ()
    assert {"float16", "bfloat16"} & {remedy.fix for remedy in exact.remedies if remedy.cures} == set()


def test_a_large_step_in_half_loses_little():
    assert (
        examine(Updates(torch.bfloat16, 2.0**-4, in_place=True), torch.ones(8, 8).bfloat16(), fixes=False).faults == ()
    )


def test_an_error_of_the_observer_is_never_the_model_s(monkeypatch):
    monkeypatch.setattr("precision_eval.trace.value_counts._LIMITS", {torch.float16: None})
    with pytest.raises(RuntimeError, match="observing failed: TypeError"):
        examine(nn.Linear(4, 4).half(), torch.ones(1, 4).half(), fixes=False)
