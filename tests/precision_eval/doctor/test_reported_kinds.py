"""Kinds of public reports that were once answered worse: what their threads settled on, on models of a few lines."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from precision_eval.doctor.examination import examine

D = 16
BRAIN = torch.bfloat16


def told(model, *inputs):
    torch.manual_seed(0)
    return examine(model, *inputs, fixes=False)


def added(patch):
    return [line[1:].strip() for line in patch.diff.splitlines() if line.startswith("+") and line[1] != "+"]


class Scores(nn.Module):
    """Attention whose scores are scaled after the product."""

    def __init__(self, scaled, gain):
        super().__init__()
        self.scaled, self.query, self.key = scaled, nn.Linear(D, D), nn.Linear(D, D)
        with torch.no_grad():
            self.query.weight *= gain
            self.key.weight *= gain

    def forward(self, x):
        return self.scaled(self.query(x), self.key(x)).softmax(-1) @ x


def _around(q, k):
    return torch.bmm(q, k.mT) / math.sqrt(D)


def _on_the_left(q, k):
    return D**-0.5 * (q @ k.mT)


def _in_place(q, k):
    scores = torch.matmul(q + 0, k.mT)
    scores *= 0.25
    return scores


def _at_the_next_use(q, k):
    scores = torch.einsum("bld,bmd->blm", q, k)
    return (scores / 4.0).relu()


@pytest.mark.parametrize(
    ("scaled", "lines"),
    [
        (_around, ["return torch.bmm(q / math.sqrt(D), k.mT)"]),
        (_on_the_left, ["return ((q * (D**-0.5)) @ k.mT)"]),
        (_in_place, ["scores = torch.matmul((q + 0) * 0.25, k.mT)"]),
        (_at_the_next_use, ['scores = torch.einsum("bld,bmd->blm", q / 4.0, k)', "return (scores).relu()"]),
    ],
)
def test_a_product_that_overflows_before_it_is_scaled_is_one_of_scaled_factors(scaled, lines):
    torch.manual_seed(0)
    x = torch.randn(1, 6, D).half()
    diagnosis = told(Scores(scaled, 200.0).half(), x)
    assert diagnosis.status == "non_finite"
    assert diagnosis.patch.verified
    assert added(diagnosis.patch) == lines
    assert told(Scores(scaled, 1.0).half(), x).faults == ()


class Front(nn.Module):
    """A part in float32 ahead of one in half."""

    def __init__(self, narrow):
        super().__init__()
        self.narrow, self.front, self.back = narrow, nn.Conv1d(4, D, 3), nn.Linear(D, D).half()

    def forward(self, wave):
        wave = self.narrow(wave)
        return self.back(self.front(wave).mT.half())


def _half(wave):
    return wave.unsqueeze(0).half()  # here


def test_a_cast_that_its_consumer_would_undo_is_taken_out():
    patch = told(Front(_half), torch.randn(4, 9)).patch
    assert (patch.verified, added(patch)) == (True, ["return wave.unsqueeze(0)  # here"])
    assert told(Front(lambda wave: wave.unsqueeze(0)), torch.randn(4, 9)).faults == ()


def test_what_is_narrowed_ahead_of_a_complex_number_is_kept_where_it_was_narrowed():
    class Rotation(nn.Module):
        def __init__(self):
            super().__init__()
            self.project = nn.Linear(D, D)

        def forward(self, x):
            angle = torch.linspace(0, 40, D).to(x.dtype)  # here
            return self.project(x) * torch.view_as_real(torch.polar(torch.ones_like(angle), angle))[:, 0].to(x.dtype)

    patch = told(Rotation().to(BRAIN), torch.randn(2, D).to(BRAIN)).patch
    assert (patch.verified, added(patch)) == (True, ["angle = torch.linspace(0, 40, D)  # here"])


class Cached(nn.Module):
    """Keys are turned by a table in float32 and kept in half."""

    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x, cache):
        table = torch.arange(D).float().cos()
        query, key = self.query(x) * table, self.key(x) * table
        cache.index_copy_(1, torch.arange(x.shape[1]), key)
        return F.scaled_dot_product_attention(query[:, None], cache[:, None], cache[:, None])


def test_what_was_widened_on_purpose_is_cast_where_it_is_kept_and_no_cache_is():
    torch.manual_seed(0)
    patch = told(Cached().to(BRAIN), torch.randn(1, 3, D).to(BRAIN), torch.zeros(1, 8, D, dtype=BRAIN)).patch
    assert patch.verified
    assert "key.to(cache.dtype))" in patch.diff
    assert "query[:, None].to(torch.bfloat16), cache[:, None]" in patch.diff


class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(D, D)

    def forward(self, x, steps):
        x, angles = self.project(x), steps.to(x.dtype)[:, None] * 0.3
        return x * angles.cos() + x.flip(-1) * angles.sin()  # here


def test_two_meetings_of_one_line_are_both_mended():
    torch.manual_seed(0)
    patch = told(Turned().to(BRAIN), torch.randn(700, D).to(BRAIN), torch.arange(700)).patch
    assert patch.verified
    assert patch.diff.count(".to(torch.bfloat16)") + patch.diff.count(".to(x.dtype)") >= 2


class Steps(nn.Module):
    """A training step whose gradients are small."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(D, 2)

    def forward(self, x, y):
        optimizer = torch.optim.Adam(self.net.parameters())
        with torch.enable_grad():
            loss = F.l1_loss(self.net(x), y) * 1e-5
        loss.backward()
        optimizer.step()
        return self.net.weight.detach().clone()


def test_what_adam_divides_by_zero_in_half_is_kept_in_float32():
    torch.manual_seed(0)
    x, y = torch.randn(4, D).half(), torch.randn(4, 2).half()
    diagnosis = told(Steps().half(), x, y)
    assert (diagnosis.status, diagnosis.first_split.op) == ("non_finite", "addcdiv_")
    assert "master weights" in diagnosis.first_split.reason
    assert diagnosis.patch.verified
    assert "model.net.weight.data = model.net.weight.data.to(torch.float32)" in diagnosis.patch.code
    assert "self.net(x.to(self.net.weight.dtype))" in diagnosis.patch.diff
    assert told(Steps(), x.float(), y.float()).faults == ()


class Prompt(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.net = nn.Embedding(9, D), nn.Linear(D, 2)
        self.requires_grad_(False)

    def forward(self, ids):
        soft = nn.Parameter(self.table(ids).clone())  # here
        optimizer = torch.optim.AdamW([soft])
        with torch.enable_grad():
            (self.net(soft).square().mean() * 1e-4).backward()
        optimizer.step()
        return soft.detach()


def test_a_leaf_that_the_call_makes_is_kept_in_float32():
    patch = told(Prompt().half(), torch.arange(5)).patch
    assert patch.verified
    assert added(patch)[0] == "soft = nn.Parameter(self.table(ids).to(torch.float32).clone())  # here"


class Mean(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.project = nn.Linear(D, D)
        self.register_buffer("mean", torch.zeros(D, dtype=dtype))

    def forward(self, x):
        for row in self.project(x):
            self.mean.mul_(0.998).add_(row.to(self.mean.dtype) + 3, alpha=0.002)
        return self.mean.clone()


def test_a_running_mean_that_cannot_hold_its_steps_is_stored_in_float32():
    torch.manual_seed(0)
    x = torch.randn(150, D).to(BRAIN)
    patch = told(Mean(BRAIN).to(BRAIN), x).patch
    assert (patch.verified, patch.code) == (True, "model.mean.data = model.mean.data.to(torch.float32)")
    model = Mean(torch.float32).to(BRAIN)
    model.mean.data = model.mean.data.float()
    assert told(model, x).faults == ()


class Follows(nn.Module):
    """Its weights are cast to whatever comes in."""

    def __init__(self, gain):
        super().__init__()
        self.net = nn.Linear(D, D)
        self.gain = gain

    def forward(self, x):
        x = x * self.gain
        return F.linear(x, self.net.weight.to(x.dtype), self.net.bias.to(x.dtype))


def test_a_promotion_that_the_weights_follow_is_a_cost_and_no_fault():
    model = Follows(torch.ones(D)).to(BRAIN)
    diagnosis = told(model, torch.randn(2, D).to(BRAIN))
    split = diagnosis.first_split
    assert (split.kind, split.severity, diagnosis.faults) == ("followed", "risk", ())
    assert "self.gain.to(x.dtype)" in diagnosis.patch.diff
    assert diagnosis.patch.verified


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight.t(), x.t() @ gradient  # here


class Trains(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(D, D), nn.Parameter(torch.randn(D, 2))

    def forward(self, x):
        with torch.enable_grad(), torch.autocast("cpu", dtype=BRAIN):
            loss = Product.apply(self.first(x), self.second).float().square().mean()
        return torch.autograd.grad(loss, [self.second])[0]


def test_an_error_in_a_backward_under_autocast_is_told_at_its_line_and_cast_there():
    diagnosis = told(Trains(), torch.randn(3, D))
    assert diagnosis.first_split.place.text.endswith("# here")
    assert diagnosis.patch.verified
    assert "gradient.to(weight.dtype) @ weight.t()" in diagnosis.patch.diff


class Clips(nn.Module):
    """Gradients over their norm, whose square overflows."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(D, D)

    def forward(self, x):
        with torch.enable_grad():
            loss = (self.net(x) * 40).square().sum()
        (gradient,) = torch.autograd.grad(loss, [self.net.weight])
        return gradient * (1.0 / gradient.pow(2).sum().sqrt())  # here


def test_gradients_that_are_zero_by_a_norm_that_overflows_do_not_underflow():
    torch.manual_seed(0)
    diagnosis = told(Clips().half(), torch.randn(9, D).half())
    assert "GradScaler" not in diagnosis.first_split.reason
    assert diagnosis.first_split.place.text.endswith("# here")
    assert diagnosis.patch.verified
    assert "gradient.to(torch.float32).pow(2)" in diagnosis.patch.diff


class Unit(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(D, D, bias=False)

    def forward(self, x):
        x = self.project(x)
        return x / (x.norm(dim=-1, keepdim=True) + 1e-12)


def test_an_epsilon_that_is_zero_in_half_is_added_in_float32():
    rows = torch.ones(3, D).half()
    rows[1] = 0
    patch = told(Unit().half(), rows).patch
    assert patch.verified
    assert "x.norm(dim=-1, keepdim=True).to(torch.float32) + 1e-12" in patch.diff


class Inverse(nn.Module):
    def __init__(self):
        super().__init__()
        self.size, self.phase = nn.Linear(D, 9), nn.Linear(D, 9)

    def forward(self, x):
        return torch.fft.irfft(self.size(x) * torch.exp(1j * self.phase(x)))


def test_complex_numbers_of_bfloat16_are_no_silent_promotion():
    if torch.result_type(torch.ones(1).to(BRAIN), 1j) != torch.complex64:
        pytest.skip("this torch has a narrower complex format, which few operations take")
    torch.manual_seed(0)
    assert told(Inverse().to(BRAIN), torch.randn(2, D).to(BRAIN)).faults == ()
