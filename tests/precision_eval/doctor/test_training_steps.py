"""Calls that go backward: a step of training is run as its user runs it, with gradients."""

import copy

import pytest
import torch
from torch import nn

from precision_eval.cases.own import OwnCase
from precision_eval.doctor.examination import examine
from precision_eval.fixes.packing import takes_gradients


class Averaged(nn.Module):
    """A step of training, and a float32 average of the weights that it moves."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 8)
        self.average = copy.deepcopy(self.net).requires_grad_(False)
        self.net.to(torch.bfloat16)

    def forward(self, x):
        loss = self.net(x).float().square().mean()
        loss.backward()
        with torch.no_grad():
            for kept, moved in zip(self.average.parameters(), self.net.parameters(), strict=True):
                kept.mul_(0.9).lerp_(moved - 0.1 * moved.grad, 0.1)
        return loss.detach()


class Penalized(nn.Module):
    """Asks for gradients by a function beside it."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 1)

    def forward(self, x):
        return _slope(self.net, x).square().mean()


def _slope(net, x):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(net(x).sum(), x, create_graph=True)[0]


def test_the_fault_of_a_step_is_found_behind_its_backward():
    torch.manual_seed(0)
    found = examine(Averaged().eval(), torch.randn(4, 8, dtype=torch.bfloat16), fixes=False)
    assert found.status == "raised"
    assert found.first_split.op == "lerp_"
    assert found.patches[0].verified
    assert ").to(torch.float32), 0.1)" in found.patches[0].diff


def test_a_penalty_of_gradients_is_examined():
    found = examine(Penalized().eval(), torch.randn(4, 8), fixes=False)
    assert found.status == "passed"
    assert not found.faults


class Trainable(nn.Module):
    """A step of training that its forward does not take."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 8)

    def training_step(self, x):
        loss = self(x).mean()
        loss.backward()
        return loss

    def forward(self, x):
        return self.net(x)


class Stepped(Trainable):
    def forward(self, x):
        return super().training_step(x) if x.dim() > 2 else self.net(x)


def test_only_calls_that_reach_autograd_get_gradients():
    assert not takes_gradients(Trainable())
    assert takes_gradients(Stepped())
    assert takes_gradients(OwnCase(model=Trainable(), inputs=(), call=Trainable.training_step).module())
    assert takes_gradients(Averaged())
    assert takes_gradients(Penalized())
    assert not takes_gradients(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)))


class RoundsAtRandom(nn.Module):
    """Writes a float32 result to bfloat16 weights by its bits, rounded up or down at random."""

    def __init__(self, decay=None):
        super().__init__()
        self.weight, self.decay = nn.Parameter(torch.ones(8, 8, dtype=torch.bfloat16)), decay

    def forward(self, x):
        with torch.no_grad():
            if self.decay:
                self.weight.mul_(self.decay)
            wide = self.weight.float() * 0.999
            bits = wide.view(torch.int32) + torch.randint(0, 1 << 16, wide.shape, dtype=torch.int32)
            self.weight.copy_(bits.bitwise_and_(-65536).view(torch.float32))
        return x @ self.weight


def test_floats_that_are_written_by_their_bits_are_examined():
    x = torch.ones(2, 8).bfloat16()
    for model in (RoundsAtRandom(), RoundsAtRandom(decay=0.9)):
        found = examine(model, x, fixes=False)
        assert (found.status, found.faults) == ("passed", ())


def test_a_step_in_place_that_changes_nothing_is_a_fault_which_no_half_format_cures():
    found = examine(RoundsAtRandom(decay=1 - 1e-4), torch.ones(2, 8).bfloat16(), latency=False)
    (fault,) = found.faults
    assert (fault.op, fault.place.text) == ("mul_", "self.weight.mul_(self.decay)")
    assert fault.reason.startswith("100 % of the values of weight")
    assert [remedy.fix for remedy in found.remedies if remedy.cures] == ["full_float32"]


class Scales(nn.Module):
    def __init__(self, dtype, **options):
        super().__init__()
        self.net, self.dtype = nn.Linear(8, 8), dtype
        self.scaler = torch.amp.GradScaler("cpu", **options)

    def forward(self, x):
        with torch.autocast("cpu", dtype=self.dtype):
            loss = self.net(x).square().mean()
        self.scaler.scale(loss).backward()
        return loss.detach()


@pytest.mark.parametrize(
    ("dtype", "options", "told"),
    [(torch.bfloat16, {}, 1), (torch.bfloat16, {"enabled": False}, 0), (torch.float16, {}, 0)],
    ids=["bfloat16", "switched off", "float16"],
)
def test_a_scaler_of_what_is_not_in_float16_is_a_cost(dtype, options, told):
    found = examine(Scales(dtype, **options), torch.ones(2, 8), fixes=False, costs=True, latency=False)
    assert [cost.kind for cost in found.costs].count("needless_scaler") == told
