"""What a GPU pays for and the CPU does not; here every tensor of the CPU is taken to be on a device."""

import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from precision_eval.doctor import costs, device_costs, diagnosis, remedies
from precision_eval.doctor.examination import examine
from precision_eval.trace import dtype_flow, host_waits
from precision_eval.trace.attention import why_unfused

D = 64


@pytest.fixture
def on_device(monkeypatch):
    monkeypatch.setattr(host_waits, "runs_apart", lambda device: True)


@pytest.fixture
def timed(monkeypatch):
    """Let changes take so much of the time on each clock; nothing is timed."""
    ratios = {"device": 1.0, "launched": 0.7}

    def compare(candidates, *, timer, graph, **_):
        ratio = ratios["launched" if timer else "device" if graph else "cpu"]
        verdict = "faster" if ratio < 1 else "slower" if ratio > 1 else "undecided"
        made = SimpleNamespace(ratio=ratio, ratio_low=ratio, ratio_high=ratio, verdict=verdict, doubts=())
        return {name: made for name in candidates if name != remedies.AS_IT_IS}

    monkeypatch.setattr(remedies, "compare_latency", compare)
    monkeypatch.setattr(remedies, "LaunchedTimer", lambda device: device)
    monkeypatch.setattr(remedies, "_device", lambda subject: "cuda:0")
    return ratios


def costs_of(model, *inputs):
    return examine(model.eval().requires_grad_(False), *inputs, fixes=False, costs=True, budget_s=100.0).costs


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(D, D)


class SetsOne(Model):
    def forward(self, x):
        x = self.layer(x)
        x[0, 0] = 2.0
        return x


class ScalesByItem(Model):
    def forward(self, x):
        x = self.layer(x)
        return x / x.abs().max().item()


class ScalesByFloat(Model):
    def forward(self, x):
        x = self.layer(x)
        return x / float(x.abs().max())


class MakesANumber(Model):
    def forward(self, x):
        return self.layer(x) * torch.tensor(0.5, dtype=x.dtype)


class Masks(Model):
    def forward(self, x):
        x = self.layer(x)
        return x[x > 0].sum() + x


class Branches(Model):
    def forward(self, x):
        x = self.layer(x)
        return x if x.sum().item() > 0 else -x


class Loops(Model):
    def forward(self, x):
        for _ in range(5):
            x = self.layer(x)
            x = x / x.abs().max().item()
        return x * float(x.mean())


@pytest.mark.parametrize(
    ("model", "change"),
    [
        (SetsOne, "x[0, 0].fill_(2.0)"),
        (ScalesByItem, "return x / x.abs().max()"),
        (ScalesByFloat, "return x / (x.abs().max())"),
        (MakesANumber, "torch.full((), 0.5, dtype=x.dtype)"),
    ],
)
def test_a_wait_is_named_with_a_line_that_does_without(on_device, timed, model, change):
    (cost,) = costs_of(model(), torch.randn(4, D))
    assert (cost.kind, cost.count, cost.patch.verified) == ("host_wait", 1, True)
    assert any(text.startswith("+") and change in text for text in cost.patch.diff.splitlines())
    assert (cost.price.latency_ratio, cost.price.launched_ratio) == (None, 0.7)


@pytest.mark.parametrize(("model", "line"), [(Masks, "x[x > 0]"), (Branches, "x.sum().item() > 0")])
def test_a_wait_that_no_line_does_without_is_named_without_a_patch(on_device, timed, model, line):
    (cost,) = costs_of(model(), torch.randn(4, D))
    assert (cost.kind, cost.patch, cost.price) == ("host_wait", None, None)
    assert line in cost.place.text
    assert cost.reason.endswith("; not priced: no change of the line is known to do without it")


@pytest.mark.parametrize("launched", [0.5, 1.0])
def test_a_wait_in_a_library_has_a_price_where_the_trial_saves_and_no_patch(on_device, timed, monkeypatch, launched):
    monkeypatch.setattr(device_costs, "is_installed", lambda file: True)
    timed["launched"] = launched
    (cost,) = costs_of(SetsOne(), torch.randn(4, D))
    assert (cost.kind, cost.patch) == ("host_wait", None)
    assert (cost.price is None) == (launched == 1.0)
    assert "tried without the wait, and no patch is given" in cost.reason
    lines = "\n".join(diagnosis._costs(SimpleNamespace(costs=(cost,))))
    assert ("of the launched time as it is" in lines) == (launched < 1.0)


def test_a_wait_after_the_loop_is_counted_once_and_each_step_of_it(on_device, timed):
    counts = {cost.place.text.strip(): cost.count for cost in costs_of(Loops(), torch.randn(4, D))}
    assert counts == {"x = x / x.abs().max().item()": 5, "return x * float(x.mean())": 1}


def test_a_wait_whose_change_saves_nothing_is_named_all_the_same(on_device, timed):
    timed["launched"] = 1.0
    (cost,) = costs_of(SetsOne(), torch.randn(4, D))
    assert cost.patch.verified
    assert cost.price is None


@pytest.mark.parametrize("model", [SetsOne, ScalesByItem, MakesANumber, Masks, Branches, Loops])
def test_on_the_cpu_nothing_waits(timed, model):
    timed["cpu"] = timed["device"] = 0.5
    assert costs_of(model(), torch.randn(4, D)) == ()


class Attends(Model):
    def forward(self, x):
        q = self.layer(x).view(1, 4, -1, D // 4)
        return F.scaled_dot_product_attention(q, q, q)


def test_float32_in_the_memory_efficient_kernel_is_priced_in_half_with_its_drift(on_device, timed, monkeypatch):
    timed["device"] = 0.1
    monkeypatch.setattr(dtype_flow, "backend_name", lambda kernels: "efficient")
    (cost,) = costs_of(Attends(), torch.randn(128, D))
    assert cost.kind == "slow_attention"
    assert ".to(torch.bfloat16)" in cost.patch.diff
    assert cost.price.latency_ratio == 0.1
    assert cost.price.relative_error > 100 * cost.price.relative_error_now
    monkeypatch.setattr(host_waits, "runs_apart", lambda device: False)
    assert costs_of(Attends(), torch.randn(128, D)) == ()


class Shares(Model):
    def forward(self, x):
        q = self.layer(x).view(1, 4, -1, D // 4)
        k = q[:, :2]
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, k, k, enable_gqa=True)


def test_attention_that_no_kernel_takes_says_why_also_without_a_saving(on_device, timed, monkeypatch):
    monkeypatch.setattr(costs, "why_unfused", lambda args, kwargs: "efficient: heads are shared")
    (cost,) = costs_of(Shares(), torch.randn(128, D))
    assert cost.kind == "slow_attention"
    assert cost.reason.endswith("efficient: heads are shared")
    assert "k.repeat_interleave(2, dim=-3)" in cost.patch.diff
    timed["launched"] = timed["device"] = 1.5
    (cost,) = costs_of(Shares(), torch.randn(128, D))
    assert (cost.patch, cost.price) == (None, None)


def test_torch_says_why_no_kernel_takes_a_call_and_an_older_one_nothing(monkeypatch):
    def refuse(params, debug):
        assert (params.query.dtype, params.attn_mask, params.is_causal, debug) == (torch.float64, None, True, True)
        warnings.warn("Expected half. (Triggered internally at sdp.cpp:1.)", stacklevel=1)

    q = torch.randn(1, 2, 8, 16, dtype=torch.float64)
    for kernel in ("flash", "efficient"):
        monkeypatch.setattr(torch.backends.cuda, f"can_use_{kernel}_attention", refuse)
    assert why_unfused((q, q), {"value": q, "is_causal": True}) == "flash: Expected half; efficient: Expected half"
    monkeypatch.delattr(torch.backends.cuda, "SDPAParams")
    assert why_unfused((q, q, q), {}) == ""


class Twice(Model):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.layer(self.layer(x))


def test_autocast_that_keeps_no_cast_says_how_often_it_casts(on_device, timed):
    timed["device"] = 0.5
    reasons = [cost.reason for cost in costs_of(Twice(), torch.randn(128, D)) if cost.kind == "repeated_cast"]
    assert len(reasons) == 1
    assert " 4 times a call" in reasons[0]  # a weight and a bias, twice
