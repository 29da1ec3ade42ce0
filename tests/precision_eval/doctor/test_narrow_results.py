"""What half spoils within its format, the constants it brings, and what a call makes of its own parameters."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from precision_eval.doctor.examination import examine


def seeded(make, *shape, scale=1.0, dtype=torch.bfloat16):
    torch.manual_seed(0)
    return make().to(dtype).eval(), (scale * torch.randn(*shape)).to(dtype)


class Trainer(nn.Module):
    def __init__(self, wide=False):
        super().__init__()
        self.head, self.loss, self.wide = nn.Linear(32, 50), nn.CrossEntropyLoss(), wide
        with torch.no_grad():
            self.head.weight.mul_(40)

    def forward(self, x):
        logits = self.head(x)
        return self.loss(logits.float() if self.wide else logits, torch.arange(len(x)))


def test_a_loss_in_bfloat16_is_a_risk_with_its_steps():
    model, x = seeded(Trainer, 16, 32)
    diagnosis = examine(model, x, fixes=False)
    (risk,) = diagnosis.of("risk")
    assert (risk.op, diagnosis.faults) == ("cross_entropy", ())
    apart = 2.0 ** (math.frexp(model(x).item())[1] - 8)  # bfloat16 holds 8 binary digits
    assert f"{apart:.2g} apart" in risk.reason
    assert diagnosis.patch.verified
    clean = examine(*seeded(lambda: Trainer(wide=True), 16, 32), fixes=False)
    assert clean.first_split is None


class Normed(nn.Module):
    """Divides by what may be small; the epsilon is fixed, or that of the input's format."""

    def __init__(self, eps):
        super().__init__()
        self.inner, self.outer = nn.Linear(32, 32, bias=False), nn.Linear(32, 8)
        self.eps = eps

    def forward(self, x):
        h = self.inner(x)
        eps = 1e-6
        if self.eps == "finfo":
            eps = torch.finfo(h.dtype).eps
        return self.outer(h / (h.pow(2).mean(-1, keepdim=True).sqrt() + eps))


def test_the_epsilon_of_a_half_format_is_blamed_and_no_rounding():
    diagnosis = examine(*seeded(lambda: Normed("finfo"), 8, 32, scale=0.01), fixes=False)
    (fault,) = diagnosis.faults
    assert (fault.op, fault.place.text) == ("finfo", "eps = torch.finfo(h.dtype).eps")
    assert diagnosis.patch.verified
    assert "+            eps = torch.finfo(torch.float32).eps" in diagnosis.patch.diff


@pytest.mark.parametrize(("eps", "scale"), [("fixed", 0.01), ("finfo", 1.0)])
def test_an_epsilon_that_does_no_harm_is_not_named(eps, scale):
    assert examine(*seeded(lambda: Normed(eps), 8, 32, scale=scale), fixes=False).first_split is None


class Swapping(nn.Module):
    """Brings its parameters to bfloat16 as it is called, and may leave a buffer behind."""

    def __init__(self, leaves):
        super().__init__()
        self.up, self.leaves = nn.Linear(16, 32), leaves
        self.register_buffer("mix", torch.eye(32))

    def forward(self, x):
        for parameter in self.parameters():
            parameter.data = parameter.data.bfloat16()
        mix = self.mix if self.leaves else self.mix.bfloat16()
        return self.up(x.bfloat16()) @ mix


def test_parameters_cast_in_the_call_are_of_the_format_they_have_then():
    torch.manual_seed(0)
    x = torch.randn(4, 16)
    diagnosis = examine(Swapping(leaves=True).eval(), x, fixes=False)
    (fault,) = diagnosis.faults
    assert (fault.kind, fault.op, diagnosis.base_dtype) == ("raise", "matmul", "bfloat16")
    assert [operand.brought_by for operand in fault.operands if operand.dtype == "float32"] == ["buffer mix"]
    assert all(patch.verified for patch in diagnosis.patches)
    assert examine(Swapping(leaves=False).eval(), x, fixes=False).faults == ()


class Accumulator(nn.Module):
    def __init__(self, dtype=None):
        super().__init__()
        self.head, self.dtype = nn.Linear(16, 24, bias=False), dtype

    def forward(self, x):
        total = torch.zeros_like(self.head.weight, dtype=self.dtype)
        for row in x.split(1):
            total += (self.head(row).t() @ row).float()
        return total.to(x.dtype)


def test_a_sum_in_half_is_kept_in_float32_where_it_is_made():
    model, x = seeded(Accumulator, 40, 16)
    x[0] *= 20  # what is added to it is less than a step
    diagnosis = examine(model, x + 1, fixes=False)
    assert diagnosis.patch.verified
    assert "+        total = torch.zeros_like(self.head.weight, dtype=torch.float32)" in diagnosis.patch.diff
    assert diagnosis.patch.code == ""
    wide, _ = seeded(lambda: Accumulator(torch.float32), 40, 16)
    assert examine(wide, x + 1, fixes=False).faults == ()


class Inverse(nn.Module):
    """Float8 codes of what is scaled by the inverse of a small number."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 16) / 4)

    def forward(self, x):
        scale = x.abs().amax(-1, keepdim=True) / 57344
        return F.linear((x * scale.reciprocal()).to(torch.float8_e5m2).float() * scale, self.weight.float()).to(x.dtype)


def test_how_far_an_overflow_goes_is_said_and_no_cast_to_float8_dropped():
    model, x = seeded(Inverse, 4, 16, scale=0.05, dtype=torch.float16)
    diagnosis = examine(model, x, fixes=False)
    fault = diagnosis.faults[0]
    assert (fault.op, diagnosis.status) == ("reciprocal", "non_finite")
    exact = float((1 / (x.abs().amax(-1) / 57344).double()).max())
    reach = float(fault.reason.split("up to ")[1].split(",")[0])
    assert reach == pytest.approx(exact, rel=5e-3)  # three digits are printed
    assert diagnosis.patch.verified
    assert diagnosis.patch.diff.count("float8_e5m2") == 2  # taken out and put in with the line


class Routed(nn.Module):
    """What overflows stays beyond float16 until a norm brings it back."""

    def __init__(self):
        super().__init__()
        self.expert, self.shared, self.head = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, x):
        h = x + (self.expert(x) * 1e6 + self.shared(x))
        wide = h.float()
        return self.head((wide * wide.pow(2).mean(-1, keepdim=True).rsqrt()).to(h.dtype))


def test_what_overflows_where_it_meets_half_is_kept_wide_until_it_raises():
    diagnosis = examine(*seeded(Routed, 4, 16, dtype=torch.float16), fixes=False)
    assert diagnosis.status == "non_finite"
    assert diagnosis.faults[0].op == "mul"
    assert diagnosis.patch.verified
    assert "self.expert(x).to(torch.float32) * 1e6" in diagnosis.patch.diff
    assert ".to(self.head.weight.dtype))" in diagnosis.patch.diff
