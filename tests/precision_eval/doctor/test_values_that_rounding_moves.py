"""Faults that no meeting of dtypes shows: what the call itself casts, and what rounding makes of values."""

import pytest
import torch
from torch import nn

from precision_eval.core.errors import ParameterError
from precision_eval.doctor.examination import examine


class Upcast(nn.Module):
    """A pipeline whose decoder the call itself brings to float32, as the second of two calls finds it."""

    def __init__(self, cast, *, follows=False):
        super().__init__()
        self.net, self.decoder, self.cast, self.follows = nn.Linear(8, 8), nn.Linear(8, 8), cast, follows

    def forward(self, x):
        latents = self.net(x)
        self.cast(self.decoder)
        if self.follows:
            latents = latents.to(self.decoder.weight.dtype)
        return self.decoder(latents)


def _set_data(module):
    for parameter in module.parameters():
        parameter.data = parameter.data.float()


@pytest.mark.parametrize("cast", [lambda module: module.to(dtype=torch.float32), nn.Module.float, _set_data])
def test_a_weight_is_in_the_format_that_the_call_itself_casts_it_to(cast):
    x = torch.randn(3, 8).half()
    diagnosis = examine(Upcast(cast).half().eval(), x, latency=False)
    (fault,) = diagnosis.faults
    assert {operand.name: operand.dtype for operand in fault.operands} == {
        "input": "float16", "weight": "float32", "bias": "float32",
    }  # fmt: skip
    by_module = cast is not _set_data
    assert ("which the call casts at" in fault.operands[1].brought_by) is by_module
    assert diagnosis.patch.verified
    assert "self.decoder(latents.to(self.decoder.weight.dtype))" in diagnosis.patch.diff
    assert examine(Upcast(cast, follows=True).half().eval(), x, fixes=False).faults == ()


class Lookup(nn.Module):
    """A time is cast to the model's format and looked up in a table of a thousand."""

    def __init__(self, cast, look):
        super().__init__()
        self.net, self.cast, self.look = nn.Linear(8, 8), cast, look
        self.register_buffer("table", torch.linspace(0.1, 1, 1000))

    def forward(self, x, time):
        time = self.cast(time, x)
        return self.net(x) * self.look(self, time)


def _to_dtype(time, x):
    return time.to(x.dtype)


def _to_device_and_dtype(time, x):
    return time.to(x.device, x.dtype)


def _by_keywords(time, x):
    return time.to(device=x.device, dtype=x.dtype)


def _not(time, x):
    return time


def _in_tensor(self, time):
    return self.table[time.long()]


def _in_list(self, time):
    return self.table.tolist()[int(time)]


def _in_dictionary(self, time):
    return {999: 0.5}[time.item()]


@pytest.mark.parametrize("look", [_in_tensor, _in_list, _in_dictionary])
@pytest.mark.parametrize(
    ("cast", "line"),
    [
        (_to_dtype, "return time"),
        (_to_device_and_dtype, "return time.to(x.device, torch.float32)"),
        (_by_keywords, "return time.to(device=x.device, dtype=torch.float32)"),
    ],
)
def test_an_error_that_rounding_brings_is_blamed_on_the_rounding(look, cast, line):
    x, time = torch.randn(2, 8).bfloat16(), torch.tensor(999.0)
    diagnosis = examine(Lookup(cast, look).bfloat16().eval(), x, time, latency=False)
    assert diagnosis.first_split.place.function == cast.__name__
    assert diagnosis.first_split.result == "bfloat16"
    assert diagnosis.raised.place.function == look.__name__
    assert diagnosis.patch.verified
    assert f"+    {line}\n" in diagnosis.patch.diff
    assert examine(Lookup(_not, look).bfloat16().eval(), x, time, fixes=False).faults == ()


def test_an_error_that_float64_raises_too_is_none_of_dtypes():
    with pytest.raises(ParameterError, match="not a dtype error"):
        examine(Lookup(_to_dtype, _in_tensor).bfloat16().eval(), torch.randn(2, 8).bfloat16(), torch.tensor(2000.0))


class Standardizes(nn.Module):
    def __init__(self, variance):
        super().__init__()
        self.out, self.variance = nn.Linear(16, 16), variance

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        return self.out((x - mean) / (self.variance(x, mean).clamp_min(0).sqrt() + 1e-6))


def _of_squares(x, mean):
    return x.square().mean(-1, keepdim=True) - mean.square()


def _of_powers(x, mean):
    return (x**2).mean(-1, keepdim=True) - mean**2


def _of_deviations(x, mean):
    return (x - mean).square().mean(-1, keepdim=True)


@pytest.mark.parametrize("variance", [_of_squares, _of_powers])
def test_a_variance_that_cancels_is_named_and_not_what_divides_by_it(variance):
    x = 300 + 0.01 * torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
    diagnosis = examine(Standardizes(variance).eval(), x, latency=False)
    (fault,) = diagnosis.faults
    assert (fault.op, fault.place.function) == ("sub", variance.__name__)
    assert "nearly equal numbers are subtracted" in fault.reason
    assert not diagnosis.patch.verified
    assert "float64" in diagnosis.patch.origin
    assert examine(Standardizes(_of_deviations).eval(), x, fixes=False).faults == ()


def test_no_format_with_fewer_digits_is_suggested_where_digits_are_lost():
    class SmallAngles(nn.Module):
        def forward(self, angle):
            return (1 - torch.cos(angle)) / angle**2

    angle = torch.linspace(1e-4, 3e-4, 8)
    diagnosis = examine(SmallAngles(), angle, latency=False)
    assert diagnosis.faults[0].op == "__rsub__"
    assert not any("float16" in patch.code for patch in diagnosis.patches)


class Chooses(nn.Module):
    """A greedy step: the second score is the larger by one step of bfloat16, and what scales them takes that away."""

    def __init__(self, scale):
        super().__init__()
        self.head, self.scale = nn.Linear(4, 6, bias=False), scale
        with torch.no_grad():
            self.head.weight.zero_()
            self.head.weight[:2, 0] = torch.tensor([15.9375, 16.0])

    def forward(self, x):
        return self.scale(self.head(x)).argmax(-1)


def _in_half(scores):
    return scores * 1.01


def _in_float32(scores):
    return scores.float() * 1.01


def test_tokens_that_one_line_rounds_to_a_tie_are_a_fault_of_that_line():
    x = torch.eye(4)[:1].expand(8, 4).bfloat16()
    diagnosis = examine(Chooses(_in_half).bfloat16().eval(), x, latency=False)
    (fault,) = diagnosis.faults
    assert (fault.op, fault.place.function) == ("mul", _in_half.__name__)
    assert "100 % of the tokens are not those of float64" in fault.reason
    assert diagnosis.patch.verified
    assert "+    return scores.to(torch.float32) * 1.01\n" in diagnosis.patch.diff
    cures = {remedy.fix: remedy.cures for remedy in diagnosis.remedies}
    assert cures["full_float32"]
    assert not cures["bfloat16"]
    assert examine(Chooses(_in_float32).bfloat16().eval(), x, fixes=False).faults == ()


class Switched(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.net, self.make = nn.Linear(8, 8), make

    def forward(self, x):
        with self.make():
            return self.net(x).float()


def _off():
    return torch.autocast("cpu", dtype=torch.float16, enabled=False)


def _on():
    return torch.autocast("cpu", dtype=torch.bfloat16)


def _guard():
    return torch.autocast("cpu", enabled=False)


@pytest.mark.parametrize(("make", "expected"), [(_off, ["autocast"]), (_on, []), (_guard, [])])
def test_an_autocast_that_is_switched_off_where_nothing_runs_in_half_is_named(make, expected):
    diagnosis = examine(Switched(make).eval(), torch.randn(2, 8), fixes=False)
    assert [finding.op for finding in diagnosis.findings if finding.kind == "declared"] == expected
    assert diagnosis.faults == ()
    assert all(f.place.function == make.__name__ for f in diagnosis.findings if f.kind == "declared")


class UnderAutocast(nn.Module):
    """Layers under autocast to a half format, or one of many; the output comes back in float32."""

    def __init__(self, covered):
        super().__init__()
        self.layers, self.covered = nn.ModuleList([nn.Linear(64, 64) for _ in range(5)]), covered

    def forward(self, x):
        for index, layer in enumerate(self.layers):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=index < self.covered):
                x = torch.tanh(layer(x.float())).float()
        return x


@pytest.mark.parametrize(("covered", "is_fault"), [(5, False), (1, True)])
def test_an_autocast_that_most_products_run_in_is_asked_for(covered, is_fault):
    torch.manual_seed(0)
    diagnosis = examine(UnderAutocast(covered), torch.randn(4, 64), fixes=False, latency=False)
    assert bool(diagnosis.faults) == is_fault


class Head(nn.Module):
    """A projection whose results are large beside what is said of them."""

    def __init__(self, wide):
        super().__init__()
        self.wide, self.head = wide, nn.Linear(16, 64, bias=False)
        nn.init.normal_(self.head.weight, std=4.0)

    def forward(self, x):
        logits = nn.functional.linear(x.float(), self.head.weight.float()) if self.wide else self.head(x)
        return logits.float().log_softmax(-1)


@pytest.mark.parametrize("wide", [False, True])
def test_of_a_drift_that_the_format_explains_the_line_that_rounds_most_is_told(wide):
    torch.manual_seed(0)
    model = Head(wide).to(torch.bfloat16).eval()
    found = examine(model, torch.randn(8, 16).bfloat16(), fixes=False)
    assert not found.faults
    assert ("linear in head at" in found.largest_share) is not wide


class Gain(nn.Module):
    """A norm in float32 that rounds before its gain, which is large; no line of it rounds most by itself."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(48) + 8)

    def forward(self, x):
        unit = nn.functional.normalize(x.float(), dim=-1).to(x.dtype)
        return unit * (1 + self.gain)


class Gained(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain, self.out = Gain(), nn.Linear(48, 512, bias=False)

    def forward(self, x):
        return nn.functional.linear(self.gain(x).float(), self.out.weight.float())


def test_a_function_that_rounds_in_several_lines_is_told_as_one():
    torch.manual_seed(0)
    found = examine(Gained().to(torch.bfloat16), torch.randn(8, 48).bfloat16(), fixes=False)
    assert not found.faults
    assert "(Gain.forward)" in found.largest_share


class Picker(nn.Module):
    """Returns which experts it picks, and no number that floats."""

    def __init__(self, wide):
        super().__init__()
        self.score, self.wide = nn.Linear(64, 96, bias=False), wide

    def forward(self, x):
        scores = nn.functional.linear(x.float(), self.score.weight.float()) if self.wide else self.score(x)
        return scores.softmax(-1, dtype=torch.float32).topk(8).indices


@pytest.mark.parametrize("wide", [False, True])
def test_the_line_whose_rounding_moves_choices_is_told_where_nothing_floats(wide):
    torch.manual_seed(0)
    found = examine(Picker(wide).to(torch.bfloat16), torch.randn(256, 64).bfloat16(), fixes=False)
    assert not found.faults
    assert ("linear in score at" in found.largest_share) is not wide
