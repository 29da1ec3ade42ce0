"""What is no matter of dtypes, what autocast's cache did, and what a model declares and does not do."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from precision_eval.doctor.controls import CACHE_OFF
from precision_eval.doctor.examination import examine


class Masked(nn.Module):
    """Attention in which a query may see no key."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x, keep):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q @ k.transpose(-1, -2) / 32**0.5).masked_fill(~keep, float("-inf"))
        return x + scores.softmax(-1) @ v


def left_padded(padding):
    keep = torch.ones(8, 8, dtype=torch.bool).tril()
    keep[:, :padding] = False
    return torch.randn(2, 8, 32, generator=torch.Generator().manual_seed(0)).half(), keep


def test_what_float64_breaks_too_is_cured_by_no_dtype():
    diagnosis = examine(Masked().half().eval(), *left_padded(3), latency=False)
    assert diagnosis.status == "non_finite"
    (fault,) = diagnosis.faults
    assert fault.op == "softmax"
    assert "no dtype cures it" in fault.reason
    assert diagnosis.patch.verified
    assert "scores.clamp(min=torch.finfo(torch.float16).min).softmax(-1)" in diagnosis.patch.diff
    assert not any(remedy.cures for remedy in diagnosis.remedies)
    assert examine(Masked().half().eval(), *left_padded(0), fixes=False).faults == ()


def _entropy(log_p):
    return -(log_p.exp() * log_p).sum(-1)


def _scaled_by_its_largest(x):
    largest = x.abs().amax(-1, keepdim=True)
    return (x / largest).clamp(-1, 1)


def _of_inverse_norms(x):
    return x * x.norm(dim=-1, keepdim=True).reciprocal()


@pytest.mark.parametrize(
    ("ends", "given", "said", "changed"),
    [
        (_entropy, lambda x: x.masked_fill(x < 0, -torch.inf).log_softmax(-1), "0 · ±inf", ".nan_to_num(0.0)"),
        (
            _scaled_by_its_largest,
            lambda x: x * (torch.arange(6) > 1)[:, None],
            "largest is 0 in 2 of 6",
            "largest.clamp",
        ),
        (_of_inverse_norms, lambda x: x * (torch.arange(6) > 0)[:, None], "is 0 in 1 of 6", ".clamp(min="),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_arithmetic_that_is_not_defined_is_named_and_the_change_was_run(ends, given, said, changed, dtype):
    class Ends(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(16), requires_grad=False)

        def forward(self, x):
            return ends(x * self.gain)

    x = torch.randn(6, 16, generator=torch.Generator().manual_seed(0))
    diagnosis = examine(Ends().to(dtype), given(x).to(dtype), fixes=False)
    (fault,) = diagnosis.faults
    assert said in fault.reason
    assert diagnosis.patch.verified
    assert changed in diagnosis.patch.diff
    assert examine(Ends().to(dtype), x.softmax(-1).log().to(dtype), fixes=False).faults == ()


@pytest.mark.parametrize("number", ["-1e9", "torch.finfo(torch.float32).min", "self.fill"])
def test_a_fill_beyond_float16_is_made_one_that_fits(tmp_path, number):
    source = f"""
import torch
from torch import nn

class Masks(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.fill = nn.Linear(16, 16), -3e38

    def forward(self, x, keep):
        scores = self.query(x) @ x.mT / 4
        scores = torch.where(keep, scores, {number})
        return scores.softmax(-1) @ x
"""
    file = tmp_path / "masks.py"
    file.write_text(source)
    namespace = {}
    exec(compile(source, str(file), "exec"), namespace)
    torch.manual_seed(0)
    model, x, (_, keep) = namespace["Masks"]().half().eval(), torch.randn(8, 16).half(), left_padded(2)
    diagnosis = examine(model, x, keep, fixes=False)
    assert diagnosis.status == "non_finite"
    assert diagnosis.patch.verified
    assert diagnosis.patch.relative_error < 2 * 2**-11
    assert ("-1e4" if "self" not in number else ".clamp(min=torch.finfo(torch.float16).min)") in diagnosis.patch.diff
    assert examine(model, x, left_padded(0)[1], fixes=False).faults == ()


def test_an_overflow_that_float64_does_not_have_is_blamed_on_the_format():
    class Overflows(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.Linear(32, 32)
            with torch.no_grad():
                self.up.weight.mul_(1e5)

        def forward(self, x):
            return self.up(x) * 1e3

    diagnosis = examine(Overflows().half().eval(), torch.randn(3, 32).half(), fixes=False)
    assert diagnosis.status == "non_finite"
    assert "no dtype" not in diagnosis.faults[0].reason


class PolicyAndReference(nn.Module):
    """Two passes under autocast, between which the weight is exchanged."""

    def __init__(self, each=False):
        super().__init__()
        self.net, self.each = nn.Linear(64, 64), each
        self.register_buffer("other", torch.randn(64, 64) / 8)

    def forward(self, x):
        with torch.enable_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            policy, kept = self.net(x), self.net.weight.detach().clone()
            self.net.weight.data.copy_(self.other)
            if self.each:
                torch.clear_autocast_cache()
            reference = self.net(x)
            self.net.weight.data.copy_(kept)
        return (policy.float() - reference.float()).square().mean()


def test_a_kept_cast_of_a_weight_that_changed_is_told_from_rounding():
    diagnosis = examine(PolicyAndReference().eval(), torch.randn(4, 64), latency=False)
    assert [fault.kind for fault in diagnosis.faults] == ["drift"]
    assert "autocast's cache" in diagnosis.faults[0].reason
    assert [(patch.code, patch.verified) for patch in diagnosis.patches] == [(CACHE_OFF, True)]
    assert diagnosis.costs == ()
    was_enabled = torch.is_autocast_cache_enabled()
    assert was_enabled


def test_a_cast_that_is_made_anew_is_no_fault():
    assert examine(PolicyAndReference(each=True).eval(), torch.randn(4, 64), fixes=False).faults == ()


class Speaks(nn.Module):
    """What is not torch gets the wave."""

    def __init__(self):
        super().__init__()
        self.net = nn.Conv1d(20, 1, 7, padding=3)

    def forward(self, mel):
        wave = torch.tanh(self.net(mel)).squeeze()
        return torch.from_numpy(wave.detach().cpu().numpy())


class Fills(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(32, 32) for _ in range(3))

    def forward(self, x, keep):
        scores = self.q(x) @ self.k(x).transpose(1, 2) / 32**0.5
        scores = scores.masked_fill(~keep[:, None], -1e9)
        return scores.softmax(-1) @ self.v(x)


@pytest.mark.parametrize(
    ("model", "inputs", "line"),
    [
        (Speaks().bfloat16(), (torch.randn(1, 20, 200).bfloat16(),), "wave.detach().cpu().float().numpy()"),
        (
            Fills().half(),
            (torch.randn(1, 10, 32).half(), torch.arange(10)[None] < 7),
            "masked_fill(~keep[:, None], torch.finfo(scores.dtype).min)",
        ),
    ],
    ids=["numpy", "fill"],
)
def test_the_patch_stands_at_the_call_that_refuses(model, inputs, line):
    diagnosis = examine(model.eval(), *inputs, latency=False)
    assert diagnosis.patch.verified
    assert line in diagnosis.patch.diff
    assert diagnosis.patch.diff.count("\n-") == 1  # only that line


class FusedAdapter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, down, up):
        ctx.save_for_backward(x, weight, down, up)
        return x @ weight.t() + (x @ down.t().to(x.dtype)) @ up.t().to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        x, weight, down, up = ctx.saved_tensors
        grad_down = (grad @ up).flatten(0, 1).t() @ x.flatten(0, 1)
        return grad @ weight, None, grad_down, grad.flatten(0, 1).t() @ (x.flatten(0, 1) @ down.t().to(x.dtype))


class Adapted(nn.Module):
    """Adapters in float32 on a base in bfloat16; the call returns a gradient."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(32, 32, bias=False).bfloat16().requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(4, 32) / 6), nn.Parameter(torch.randn(32, 4) / 6)

    def forward(self, x):
        with torch.enable_grad():
            FusedAdapter.apply(x, self.base.weight, self.down, self.up).float().square().mean().backward()
        return self.down.grad


def test_the_backward_of_a_function_is_patched_where_its_dtypes_meet():
    diagnosis = examine(Adapted().eval(), torch.randn(2, 6, 32).bfloat16(), latency=False)
    assert diagnosis.patch.verified
    assert "(grad @ up.to(grad.dtype))" in diagnosis.patch.diff
    assert diagnosis.patch.code == ""  # the adapters stay in float32


class Declares(nn.Module):
    def __init__(self, dtype, *, casts=False):
        super().__init__()
        self.config, self.compute_dtype, self.casts = SimpleNamespace(torch_dtype=dtype), torch.bfloat16, casts
        self.flow = nn.Linear(16, 16)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.casts):
            return self.flow(x)


def test_a_format_that_is_declared_and_not_used_is_told():
    x = torch.randn(2, 16)
    diagnosis = examine(Declares("bfloat16").eval(), x, fixes=False)
    assert [(f.kind, f.severity, f.op) for f in diagnosis.findings] == [
        ("declared", "risk", "autocast"),
        ("declared", "risk", "compute_dtype and config.torch_dtype"),
    ]
    assert "enabled=self.casts" in diagnosis.findings[0].reason
    assert diagnosis.faults == ()
    assert "declared and not used" in str(diagnosis)
    assert examine(Declares("bfloat16", casts=True).eval(), x, fixes=False).of("risk") == ()
    assert examine(Declares(torch.bfloat16).bfloat16().eval(), x.bfloat16(), fixes=False).of("risk") == ()


class Grows(nn.Module):
    def forward(self, x):
        for _ in range(12):
            x = x * x
        return x / x


@pytest.mark.parametrize(("later", "too"), [(1, True), (50, False)])
def test_what_grows_without_end_is_no_matter_of_dtypes(later, too):
    """1.03 to the 4096th power is beyond float32 and within float64, 2 is beyond both."""
    x = torch.full((100,), 2.0)
    x[:later] = 1.03
    found = examine(Grows().eval(), x, fixes=False)
    assert found.status == "non_finite"
    assert ("in float64 too" in found.message) is too


def test_a_fix_that_is_finite_cures_nothing_where_no_reference_is():
    class Draws(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x):
            noise = torch.rand_like(x) * self.weight
            return noise + (torch.inf if self.weight.dtype is torch.float32 else 0.0)

    found = examine(Draws().eval(), torch.ones(4), latency=False)
    assert not any(remedy.cures for remedy in found.remedies if remedy.fix == "bfloat16")
