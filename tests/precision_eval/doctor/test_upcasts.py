"""Casts to float32 that come too late or that autocast undoes, and values that stay wide until they fit."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from precision_eval.doctor.examination import examine


@pytest.fixture
def seeded_call():
    def call(make, **options):
        torch.manual_seed(0)
        return make(**options).bfloat16().eval(), torch.randn(4, 9, 32).bfloat16()

    return call


class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 16), nn.Linear(16, 16)
        self.register_buffer("rates", 10000 ** (-torch.arange(0, 8) / 8))

    def forward(self, x, at):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            angle = at[:, None].float() @ self.rates[None].float()
            return self.down(self.up(x) * torch.cat([angle.cos(), angle.sin()], -1))


def test_a_product_that_autocast_narrows_against_its_casts_is_taken_out_of_it():
    torch.manual_seed(0)
    diagnosis = examine(Turned().eval(), torch.randn(40, 16), torch.arange(900, 940), fixes=False)
    assert diagnosis.faults[0].op == "matmul"
    assert 'with torch.autocast("cpu", enabled=False): angle' in diagnosis.patch.diff
    assert diagnosis.patch.verified


class Gated(nn.Module):
    """The product passes 65504, and what comes of the layer behind it does not."""

    def __init__(self, *, bias):
        super().__init__()
        self.gate, self.value = nn.Linear(32, 64), nn.Linear(32, 64)
        self.down = nn.Linear(64, 32, bias=bias)
        with torch.no_grad():
            for layer, factor in ((self.gate, 400), (self.value, 400), (self.down, 1e-3)):
                layer.weight.mul_(factor)

    def forward(self, x):
        return x + self.down(self.gate(x) * self.value(x))


def test_what_overflows_is_scaled_and_scaled_back_or_kept_wide_until_it_fits():
    torch.manual_seed(0)
    diagnosis = examine(Gated(bias=False).half().eval(), torch.randn(4, 32).half(), latency=False)
    scaled, wide, range_of_bfloat16 = diagnosis.patches
    assert all(patch.verified and patch.relative_error < 0.02 for patch in diagnosis.patches)
    assert "self.down(self.gate(x) * 0." in scaled.diff
    assert ") / 0." in scaled.diff
    assert "model.down.weight.data.to(torch.float32)" in wide.code
    assert "bfloat16" in range_of_bfloat16.code
    assert "times the 65504" in diagnosis.faults[0].reason
    assert "of factors up to" in diagnosis.faults[0].reason


def test_a_scale_that_a_bias_keeps_from_being_undone_is_not_offered():
    torch.manual_seed(0)
    model = Gated(bias=True)
    with torch.no_grad():
        model.down.bias.fill_(50)
    diagnosis = examine(model.half().eval(), torch.randn(4, 32).half(), fixes=False)
    assert " * 0." not in diagnosis.patch.diff
    assert diagnosis.patch.verified


class Guided(nn.Module):
    def forward(self, given, wanted, strength=40.0):
        for sigma in (3000.0,):
            given, wanted = given * sigma, wanted * sigma
            mixed = wanted + strength * (given - wanted)
            mixed = mixed / sigma
        return mixed


def test_a_number_ahead_of_a_tensor_is_not_cast():
    torch.manual_seed(0)
    diagnosis = examine(Guided(), 3 * torch.randn(4, 32).half(), 3 * torch.randn(4, 32).half(), fixes=False)
    assert "strength * ((given - wanted).to(torch.float32))" in diagnosis.patch.diff
    assert diagnosis.patch.verified
    assert "sigma is multiplied in at line" in diagnosis.faults[0].reason


class Wound(nn.Module):
    """A table of angles whose every part is in half."""

    def table(self, count, width, dtype):
        at = (torch.arange(count) / 7).to(dtype)
        step = torch.log(torch.tensor([10000.0], dtype=dtype)) / width
        rates = torch.exp(torch.arange(width).type(dtype) * -step)
        return torch.sin(at[:, None] * rates).to(dtype)

    def forward(self, x):
        return x + self.table(x.shape[0], x.shape[1], x.dtype)


def test_a_function_that_loses_digits_in_several_places_is_widened_as_a_whole():
    torch.manual_seed(0)
    diagnosis = examine(Wound().half(), torch.randn(700, 16).half(), fixes=False)
    assert diagnosis.patch.verified
    assert diagnosis.patch.diff.count("\n+ ") == 3
    assert "torch.sin(at[:, None] * rates).to(dtype)" not in [line[1:] for line in diagnosis.patch.diff.splitlines()]


class Stepped(nn.Module):
    """A part that is trained in float16 beside one in float32."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(16, 16), nn.Linear(16, 4).half()

    @torch.enable_grad()
    def forward(self, x):
        optimizer, scaler = torch.optim.SGD(self.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=64.0)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = self.head(self.body(x)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        return loss.detach()


def test_parameters_whose_gradients_a_scaler_refuses_are_named_and_stored_wide():
    torch.manual_seed(0)
    diagnosis = examine(Stepped(), torch.randn(4, 16), fixes=False)
    assert "head.weight, head.bias are trained in float16" in diagnosis.faults[0].reason
    assert diagnosis.patch.verified
    assert "model.head.weight.data.to(torch.float32)" in diagnosis.patch.code


class Given(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 16))

    @torch.enable_grad()
    def forward(self, x):
        half = self.weight.detach().bfloat16().requires_grad_()
        F.linear(x.bfloat16(), half).float().square().mean().backward()
        self.weight.grad = half.grad
        return self.weight.grad.norm()


def test_a_gradient_is_cast_where_it_is_given_to_its_parameter():
    torch.manual_seed(0)
    diagnosis = examine(Given(), torch.randn(8, 16), fixes=False)
    assert "self.weight.grad = half.grad.to(self.weight.dtype)" in diagnosis.patch.diff
    assert diagnosis.patch.verified


class Averaged(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.full((16,), 8.0))
        self.out = nn.Linear(16, 16)

    def forward(self, x):
        self.mean.mul_(0.999).add_(x.mean(0), alpha=0.001)
        return self.out(x - self.mean), self.mean.clone()


def test_what_meets_a_wide_update_is_cast_where_it_is_refused():
    torch.manual_seed(0)
    diagnosis = examine(Averaged().bfloat16(), (8.3 + torch.randn(64, 16)).bfloat16(), fixes=False)
    assert diagnosis.patch.verified
    assert ".to(self.out.weight.dtype)" in diagnosis.patch.diff


class Stored(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.value = nn.Linear(32, 32), nn.Linear(32, 32)
        with torch.no_grad():
            for parameter in self.value.parameters():
                parameter.mul_(1e-3)

    def forward(self, x):
        kept = self.value(x).to(torch.float8_e4m3fn).to(x.dtype)
        return self.query(x).softmax(-1) @ kept.transpose(-1, -2)


def test_what_a_scale_would_save_in_eight_bits_is_told(seeded_call):
    diagnosis = examine(*seeded_call(Stored), fixes=False)
    assert "with a scale that fits" in diagnosis.first_split.reason


class SwitchesOff(nn.Module):
    """Would sum in float32, with autocast off, and names another device than it runs on."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = x + 0.01 * self.first(x)
            with torch.autocast("cuda", enabled=False):
                for _ in range(4):
                    x = self.last(x)
        return x


def test_an_autocast_of_another_device_that_is_to_switch_it_off_is_a_fault_with_its_device_as_the_cure():
    torch.manual_seed(0)
    found = examine(SwitchesOff(), torch.randn(16, 8), fixes=False)
    (fault,) = found.faults
    assert fault.op == "autocast"
    assert '+            with torch.autocast("cpu", enabled=False)' in found.patch.diff
    assert found.patch.verified
