"""What raises nothing and costs: found with its line and a change that runs, and shown only where it saves."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from precision_eval.doctor import remedies
from precision_eval.doctor.costs import LEAST_SAVING
from precision_eval.doctor.examination import examine

D = 64
BRAIN = torch.bfloat16


@pytest.fixture
def timed(monkeypatch):
    """Let every change take so much of the time as it is; nothing is timed."""

    def set_ratio(low, high, verdict="faster"):
        ratio = SimpleNamespace(ratio=(low + high) / 2, ratio_low=low, ratio_high=high, verdict=verdict, doubts=())
        compare = lambda candidates, **_: {name: ratio for name in candidates if name != remedies.AS_IT_IS}  # noqa: E731
        monkeypatch.setattr(remedies, "compare_latency", compare)

    set_ratio(0.7, 0.8)
    return set_ratio


def costs_of(model, *inputs):
    return examine(model.eval().requires_grad_(False), *inputs, fixes=False, costs=True, budget_s=100.0).costs


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)
        self.register_buffer("table", torch.randn(2 * D, D))


class WidensItsWeight(Model):
    def forward(self, x):
        return self.first(x) + F.linear(x.float(), self.second.weight.float()).to(x.dtype)


class KeepsOneWide(Model):
    def forward(self, x):
        wide = self.second(x.float())
        return self.first(x) + wide.to(x.dtype)


class CastsItsTable(Model):
    def forward(self, x):
        return self.first(x) @ self.table.to(x.dtype).T


class CastsFourTimes(Model):
    def forward(self, x):
        memory = self.first(x).float().tanh()
        for _ in range(4):
            x = x + memory.to(x.dtype)
        return self.second(x)


class ThereAndBack(Model):
    def forward(self, x):
        return self.second(self.first(x).float().to(x.dtype))


class LeavesAutocast(Model):
    def forward(self, x):
        with torch.autocast("cpu", BRAIN):
            return self.first(x) + torch.addmm(torch.zeros(D), x, self.table[:D], out=torch.empty(len(x), D))


class Pinned(Model):
    def forward(self, x):
        q = self.first(x).view(1, 4, -1, D // 4)
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, q, q)


slow_when_flat = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14),
    reason="newer torch fuses attention of three dimensions",
)


class Flat(Model):
    def forward(self, x):
        q = self.first(x).view(4, -1, D // 4)
        return F.scaled_dot_product_attention(q, q, q)


@pytest.mark.parametrize(
    ("model", "dtype", "kind", "line", "change"),
    [
        (CastsFourTimes, BRAIN, "repeated_cast", "memory.to(", ".float().tanh().to(torch.bfloat16)"),
        (ThereAndBack, BRAIN, "there_and_back", "self.first(x).float()", "self.second(self.first(x))"),
        (Pinned, torch.float32, "slow_attention", "scaled_dot", "SDPBackend.FLASH_ATTENTION"),
        pytest.param(
            Flat, torch.float32, "slow_attention", "scaled_dot", "q.unsqueeze(0)).squeeze(0)", marks=slow_when_flat
        ),
    ],
    ids=["four", "back", "pinned", "flat"],
)  # fmt: skip
def test_a_cost_in_the_source_is_named_with_the_line_that_saves(timed, model, dtype, kind, line, change):
    (cost,) = costs_of(model().to(dtype), torch.randn(2 * D, D, dtype=dtype))
    assert (cost.kind, cost.patch.verified) == (kind, True)
    assert line in cost.place.text
    assert any(change in text for text in cost.patch.diff.splitlines() if text.startswith("+"))
    assert (cost.price.latency_low, cost.price.latency_high) == (0.7, 0.8)


def test_what_the_code_asks_for_in_float32_by_name_is_priced_and_not_narrowed(timed):
    (cost,) = costs_of(WidensItsWeight().to(BRAIN), torch.randn(2 * D, D, dtype=BRAIN))
    assert (cost.kind, cost.patch) == ("wide_product", None)
    assert "F.linear(" in cost.place.text
    assert cost.price.latency_high == 0.8


def test_trained_weights_that_autocast_casts_are_not_narrowed(timed):
    model = LeavesAutocast().train()
    found = examine(model, torch.randn(D, D), fixes=False, costs=True, budget_s=100.0)
    assert not any("first.weight" in cost.patch.code for cost in found.costs if cost.patch)


class WidensByScales(Model):
    def __init__(self, wide):
        super().__init__()
        self.wide = wide
        self.register_buffer("scales", torch.rand(D))

    def forward(self, x):
        with torch.autocast("cpu", BRAIN):
            y = self.first(x)
            return self.second(y * (self.scales if self.wide else self.scales.to(y.dtype)))


class ReturnsLogits(Model):
    def __init__(self, wide):
        super().__init__()
        self.wide = wide

    def forward(self, x):
        logits = self.first(x).to(BRAIN)
        return logits.float() if self.wide else logits


class TakesHalf(Model):
    def __init__(self, wide):
        super().__init__()
        self.chosen = torch.float32 if wide else BRAIN
        self.to(self.chosen)

    def forward(self, x):
        return self.second(self.first(x.to(self.chosen)))


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize(
    ("model", "dtype", "kind", "name"),
    [
        (WidensByScales, torch.float32, "widening_scale", "scales"),
        (ReturnsLogits, BRAIN, "wide_output", "linear"),
        (TakesHalf, BRAIN, "wide_inputs", "self.chosen"),
    ],
)
def test_what_is_wide_without_need_is_told_with_its_line_and_bytes(timed, model, dtype, kind, name, wide):
    model = model(wide)
    model = model.to(BRAIN) if kind == "wide_output" else model
    told = [cost for cost in costs_of(model, torch.randn(D, D, dtype=dtype)) if cost.kind == kind]
    assert bool(told) is wide
    assert all(name in cost.reason and cost.place is not None for cost in told)


def test_what_is_stored_otherwise_is_a_line_too_and_saves_its_bytes(timed):
    model = CastsItsTable().to(BRAIN)
    model.table.data = model.table.data.float()
    (cost,) = costs_of(model, torch.randn(D, D, dtype=BRAIN))
    assert (cost.kind, cost.patch.code) == (
        "repeated_cast", "model.table.data = model.table.data.to(torch.bfloat16)",
    )  # fmt: skip
    assert cost.price.saved_bytes >= model.table.numel() * 2
    assert cost.price.relative_error == cost.price.relative_error_now


def test_a_module_left_in_float32_is_stored_in_half_and_its_input_no_longer_cast(timed):
    model = KeepsOneWide().to(BRAIN)
    model.second.float()
    (cost,) = costs_of(model, torch.randn(D, D, dtype=BRAIN))
    assert cost.kind == "wide_product"
    assert "+        wide = self.second(x)" in cost.patch.diff
    assert "second.weight.data.to(torch.bfloat16)" in cost.patch.code


def test_a_declared_float32_module_is_meant_so(timed):
    class Declared(KeepsOneWide):
        _keep_in_fp32_modules_strict = ("second",)

    model = Declared().to(BRAIN)
    model.second.float()
    assert costs_of(model, torch.randn(D, D, dtype=BRAIN)) == ()


def test_autocast_that_a_product_ignores_and_weights_that_it_casts_at_each_call(timed):
    costs = costs_of(LeavesAutocast(), torch.randn(D, D))
    assert {cost.kind for cost in costs} == {"autocast_ignored", "repeated_cast"} or len(costs) == 1
    assert any("first.weight" in cost.patch.code for cost in costs)


class Dequantises(Model):
    def __init__(self, compute_dtype):
        super().__init__()
        self.compute_dtype = compute_dtype
        self.register_buffer("codes", torch.randint(-8, 8, (D, D), dtype=torch.int8))

    def forward(self, x):
        wide = self.first(x).to(self.compute_dtype)
        return F.linear(wide, self.codes.to(self.compute_dtype) / 64).to(x.dtype)


def test_a_compute_dtype_that_is_wider_than_the_model_is_told_where_this_device_saves_nothing(timed):
    timed(0.99, 1.01, "equivalent")
    x = torch.randn(2 * D, D, dtype=BRAIN)
    (cost,) = costs_of(Dequantises(torch.float32).to(BRAIN), x)
    assert (cost.kind, cost.patch.verified) == ("wide_product", True)
    assert "module.compute_dtype = torch.bfloat16" in cost.patch.code
    assert "compute_dtype is float32" in cost.reason
    assert costs_of(Dequantises(BRAIN).to(BRAIN), x) == ()


class InDouble(Model):
    def __init__(self, to):
        super().__init__()
        self.to_wide = to

    def forward(self, x):
        turn = torch.polar(torch.ones(D // 2).double(), torch.arange(D // 2).double())
        if self.to_wide == "double":
            pairs = torch.view_as_complex(self.first(x).double().unflatten(-1, (-1, 2)))
            return torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype)
        pairs = torch.view_as_complex(self.first(x).float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * turn.to(torch.complex64)).flatten(-2).to(x.dtype)


def test_half_that_is_widened_to_float64_works_in_float32_with_what_it_meets(timed):
    x = torch.randn(2 * D, D, dtype=BRAIN)
    (cost,) = costs_of(InDouble("double").to(BRAIN), x)
    assert (cost.kind, cost.patch.verified) == ("double", True)
    assert "self.first(x).float()" in cost.patch.diff
    assert "pairs * turn.to(torch.complex64)" in cost.patch.diff
    assert costs_of(InDouble("float").to(BRAIN), x) == ()


def test_nothing_is_shown_where_nothing_is_saved(timed):
    x = torch.randn(2 * D, D)
    timed(0.99 - LEAST_SAVING, 1.01 - LEAST_SAVING)
    flat = costs_of(Flat(), x)
    assert all(cost.price.saved_bytes > 0 for cost in flat)  # of the scores, which are not written
    timed(1.1, 1.2, "slower")
    assert costs_of(Flat(), x) == ()
    timed(0.7, 0.8)
    assert costs_of(nn.Sequential(nn.Linear(D, D), nn.LayerNorm(D)).to(BRAIN), x.to(BRAIN)) == ()
