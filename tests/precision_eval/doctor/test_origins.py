"""Where a stray dtype comes from: a literal cast, a `dtype=` argument, float8 storage; updates that a format loses."""

import io

import numpy as np
import pytest
import soundfile
import torch
from torch import nn
from torch.nn.utils import parametrize

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


def test_a_dtype_argument_is_followed_to_the_setting_that_it_was_read_from():
    model = ReadsFirstParameter().eval()
    diagnosis = examine(model, torch.randn(1, 3, 16).bfloat16(), torch.arange(3), latency=False)
    (cache, _) = diagnosis.raised.operands
    assert "set to next(self.parameters()).dtype" in cache.brought_by
    assert diagnosis.patch.verified
    assert "next(self.parameters()).dtype" in diagnosis.patch.code
    assert model.dtype is torch.float32  # tried on a copy
    exec(diagnosis.patch.code, {"torch": torch, "model": model})
    assert model.dtype is torch.bfloat16
    assert "dtype=self.key.weight.dtype" in diagnosis.patches[1].diff


def _format_of(module):
    return next(module.parameters()).dtype


class Window:
    """Frames that a stage keeps, in a format that it is told."""

    def __init__(self, size, dtype):
        self.frames = torch.zeros(size, 16, dtype=dtype)


class Streams(nn.Module):
    """A trunk in half below a head in float32, and a window made ahead of the first frame."""

    def __init__(self, choose):
        super().__init__()
        self.head, self.trunk, self.choose = (
            nn.Linear(16, 4),
            nn.Sequential(nn.Linear(16, 16), nn.Tanh()).half(),
            choose,
        )

    def forward(self, x):
        return self.choose(self, x)

    def of_model(self, x):
        kind = _format_of(self)
        return self.filled(Window(4, kind), x.half())

    def of_input(self, x):
        kind = x.dtype
        return self.filled(Window(4, kind), x.half())

    def filled(self, window, x):
        window.frames.index_copy_(0, torch.arange(len(x)), self.trunk(x))
        return self.head(self.trunk(window.frames).float())


@pytest.mark.parametrize(
    ("choose", "line"),
    [(Streams.of_model, "kind = _format_of(self.trunk)"), (Streams.of_input, "kind = self.trunk[0].weight.dtype")],
)
def test_a_dtype_argument_is_followed_to_the_caller_that_chose_it(choose, line):
    torch.manual_seed(0)
    patch = examine(Streams(choose).eval(), torch.randn(2, 16), fixes=False).patch
    assert patch.verified
    assert f"+        {line}" in patch.diff.splitlines()


class Quieter(nn.Module):
    """A literal cast ahead of a layer that is stored in another format, in a line of its own."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Conv1d(4, 4, 1)

    def forward(self, wave):
        level = wave.abs().mean(-1, keepdim=True).to(torch.float16)
        return wave * self.gate(level).sigmoid()


def test_a_literal_cast_ahead_of_a_layer_becomes_one_to_what_the_layer_is_stored_in():
    patch = examine(Quieter().eval(), torch.randn(1, 4, 9), fixes=False).patch
    assert patch.verified
    assert ".to(self.gate.weight.dtype)" in patch.diff


class Sums(nn.Module):
    """A float32 sum by a setting, which a layer in half then refuses."""

    def __init__(self):
        super().__init__()
        self.project, self.sum_dtype = nn.Linear(16, 16), torch.float32

    def forward(self, x):
        total = torch.zeros(16, dtype=self.sum_dtype)
        for part in x:
            total = total + part
        return self.project(total)


def test_a_setting_that_keeps_digits_is_no_source_of_a_fault():
    torch.manual_seed(0)
    patch = examine(Sums().bfloat16().eval(), torch.rand(400, 16).bfloat16(), fixes=False).patch
    assert patch.verified
    assert "self.project(total.to(" in patch.diff


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


class Rotates(nn.Module):
    """A table of angles that must stay wide until its sines are taken."""

    def __init__(self):
        super().__init__()
        self.key = nn.Linear(16, 16)

    def forward(self, x, cache, at):
        table = torch.cat((torch.arange(8).float()[:, None] * 0.5,) * 16, 1).sin()
        return cache.index_copy(1, at, self.key(x) * table[: x.shape[1]])


class HalvesByHand(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(16))

    def product(self, x):
        return x @ self.weight

    def forward(self, x):
        x = x.half()
        return self.product(x).to(torch.bfloat16)


def test_what_is_wide_is_narrowed_after_what_is_computed_in_it():
    patch = examine(
        Rotates().bfloat16().eval(), torch.randn(1, 3, 16).bfloat16(), torch.zeros(1, 8, 16).bfloat16(),
        torch.arange(3), latency=False,
    ).patch  # fmt: skip
    assert patch.verified
    assert "arange(8).float()[" in patch.diff
    assert ".float().to(" not in patch.diff


def test_a_cast_by_hand_is_taken_out_and_not_undone_where_it_raises():
    patch = examine(HalvesByHand().bfloat16().eval(), torch.randn(2, 16).bfloat16(), latency=False).patch
    assert patch.verified
    assert "-        x = x.half()" in patch.diff


def test_an_error_of_values_is_blamed_on_the_line_that_overflows():
    class Samples(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(16, 8)

        def forward(self, x):
            logits = self.head(x)
            logits = logits * 6e4
            return torch.multinomial(logits.softmax(-1), 1)

    diagnosis = examine(Samples().half().eval(), 40 * torch.ones(1, 16).half(), latency=False)
    assert diagnosis.status == "raised"
    assert diagnosis.first_split.kind == "first_non_finite"
    assert diagnosis.first_split.place.text == "logits = logits * 6e4"


class Truncates(nn.Module):
    def __init__(self, dtype=None):
        super().__init__()
        self.lin, self.dtype = nn.Linear(8, 8), dtype

    def forward(self, x, ids):
        angles = (ids[:, None] * 0.3).sin().expand(-1, 8)
        return self.lin(x + angles.to(ids.dtype if self.dtype is None else self.dtype))


def test_a_cast_to_the_dtype_of_indices_cuts_off_digits():
    x, ids = torch.randn(4, 8), torch.arange(4)
    (fault,) = examine(Truncates().eval(), x, ids, fixes=False).faults
    assert (fault.kind, fault.result) == ("downcast", "int64")
    assert examine(Truncates(torch.int64).eval(), x, ids, fixes=False).faults == ()  # by name: it is meant
    assert examine(Truncates(torch.float32).eval(), x, ids, fixes=False).faults == ()


class Gradients(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.lin, self.scale = nn.Linear(32, 32), scale

    def forward(self, x):
        with torch.enable_grad(), torch.autocast("cpu", dtype=torch.float16):
            loss = self.scale * self.lin(x).square().mean()
            return torch.autograd.grad(loss, self.lin.weight)[0] / self.scale


def test_gradients_that_underflow_are_a_fault_which_no_fix_from_outside_cures():
    torch.manual_seed(0)
    x = 1e-2 * torch.randn(64, 32)
    diagnosis = examine(Gradients(1e-4), x, latency=False)
    (fault,) = diagnosis.faults
    assert "of the gradients are 0" in fault.reason
    assert diagnosis.patch is None
    assert examine(Gradients(2.0**14), x, fixes=False).faults == ()


class RoundsToOne(torch.autograd.Function):
    """A cross entropy whose backward was made ahead, in the format of its input or in float32."""

    @staticmethod
    def forward(ctx, logits, target, wide):
        gradient = logits.float().softmax(-1).to(torch.float32 if wide else logits.dtype)
        gradient[target, target] -= 1.0
        ctx.save_for_backward(gradient)
        return -logits.float().log_softmax(-1)[target, target]

    @staticmethod
    def backward(ctx, grad_output):
        return (ctx.saved_tensors[0] * grad_output[:, None]).to(torch.bfloat16), None, None


class Certain(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.head, self.wide = nn.Linear(8, 8, bias=False).bfloat16(), wide
        self.head.weight.data = 10.6 * torch.eye(8).bfloat16()

    def forward(self, x):
        logits, target = self.head(x), torch.arange(8)
        logits.retain_grad()
        RoundsToOne.apply(logits, target, self.wide).sum().backward()
        return logits.grad[target, target].float()


def test_gradients_that_are_rounded_to_zero_do_not_underflow():
    x = torch.eye(8).bfloat16()
    found = examine(Certain(wide=False), x, fixes=False)
    (fault,) = found.faults
    assert (fault.op, fault.result) == ("to", "bfloat16")
    assert "no underflow" in fault.reason
    assert "GradScaler" not in str(found)
    assert examine(Certain(wide=True), x, fixes=False).faults == ()


class HalfAsked(nn.Module):
    """Most products in float32, after one that autocast rounds, or weights that went through 8 bits."""

    def __init__(self, *, eight_bits):
        super().__init__()
        self.base, self.net, self.eight_bits = nn.Linear(32, 32), nn.Linear(32, 32), eight_bits

    def forward(self, x):
        if self.eight_bits:
            scale = self.base.weight.abs().amax() / 448
            return nn.functional.linear(x, (self.base.weight / scale).to(torch.float8_e4m3fn).to(x.dtype) * scale)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = self.base(x)
        return self.net(self.net(hidden.float()))


@pytest.mark.parametrize(("eight_bits", "dtype"), [(False, torch.float32), (True, torch.float16)])
def test_the_rounding_of_a_format_that_a_part_asks_for_is_no_fault(eight_bits, dtype):
    torch.manual_seed(0)
    assert (
        examine(HalfAsked(eight_bits=eight_bits).to(dtype), torch.randn(4, 32, dtype=dtype), fixes=False).faults == ()
    )


def test_angles_of_a_buffer_that_was_rounded_are_a_risk_and_a_fault_where_it_was_computed():
    class Rotary(nn.Module):
        def __init__(self, persistent=True):
            super().__init__()
            self.register_buffer("inv_freq", 10000 ** (-torch.arange(8) / 8), persistent=persistent)
            self.lin = nn.Linear(8, 8)

        def forward(self, x):
            angles = torch.arange(x.shape[0]).float()[:, None] * self.inv_freq.float()
            return self.lin(x * angles.cos().to(x.dtype))

    x = torch.randn(512, 8).bfloat16()
    (risk,) = examine(Rotary().bfloat16().eval(), x, fixes=False).of("risk")
    assert risk.op == "inv_freq"
    computed = examine(Rotary(persistent=False).bfloat16().eval(), x, latency=False)
    assert [fault.op for fault in computed.faults] == ["inv_freq"]
    assert computed.patch is None
    assert not any(remedy.cures for remedy in computed.remedies)
    kept = Rotary().bfloat16().eval()
    kept.inv_freq = Rotary().inv_freq
    assert examine(kept, x, fixes=False).of("risk") == ()


class CopiesWords(nn.Module):
    """A cache into which 16-bit words are copied, whatever format they are in."""

    def __init__(self, cache_dtype):
        super().__init__()
        self.lin, self.cache_dtype = nn.Linear(8, 8), cache_dtype

    def forward(self, x):
        x = self.lin(x)
        cache = torch.zeros(4, 8, dtype=self.cache_dtype)
        cache.view(torch.int16)[:] = x.view(torch.int16)
        return cache.to(x.dtype)


def test_bits_of_another_format_are_a_fault_and_those_of_the_same_are_none():
    x = torch.randn(4, 8).bfloat16()
    (fault,) = examine(CopiesWords(torch.float16).bfloat16().eval(), x, fixes=False).faults
    assert (fault.kind, fault.result) == ("bits", "float16")
    assert "bits of bfloat16" in fault.reason
    assert examine(CopiesWords(torch.bfloat16).bfloat16().eval(), x, fixes=False).faults == ()


class Validates(nn.Module):
    """A training step after a validation that casts the module in place."""

    def __init__(self, dtype):
        super().__init__()
        self.adapter, self.dtype = nn.Linear(8, 8), dtype

    def forward(self, x):
        with torch.enable_grad():
            adapter = self.adapter.to(dtype=self.dtype)  # validation
            scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD(self.parameters(), lr=1e-3)
            scaler.scale(adapter(x.to(self.dtype)).square().mean().float()).backward()
            scaler.unscale_(optimizer)
        return x


def test_a_cast_of_trained_parameters_inside_the_call_is_the_cause_of_what_raises():
    diagnosis = examine(Validates(torch.float16), torch.randn(2, 8), latency=False)
    assert diagnosis.status == "raised"
    assert diagnosis.first_split.place.text.endswith("# validation")
    assert "narrows weight, which is trained" in diagnosis.first_split.reason
    assert not any("float16" in patch.code for patch in diagnosis.patches)
    assert examine(Validates(torch.float32), torch.randn(2, 8), fixes=False).faults == ()


def test_a_consumer_outside_torch_gets_its_cast_in_the_user_s_line():
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(8, 8)

        def forward(self, x):
            wave = self.lin(x)
            soundfile.write(io.BytesIO(), wave.numpy(), 8000, format="WAV")
            return wave

    diagnosis = examine(Writes().half().eval(), torch.zeros(8).half(), latency=False)
    assert diagnosis.patch.verified
    assert "wave.float().numpy()" in diagnosis.patch.diff


class Declares(nn.Module):
    def __init__(self, compute_dtype, *, respects):
        super().__init__()
        self.lin = nn.Linear(32, 32)
        self.lin.compute_dtype = compute_dtype
        self.respects = respects

    def forward(self, x):
        if not self.respects:
            return self.lin(x)
        to = self.lin.compute_dtype
        return nn.functional.linear(x.to(to), self.lin.weight.to(to)).to(x.dtype)


def test_a_format_that_a_part_declares_is_a_risk_unused_and_no_fault_used():
    x = torch.randn(4, 32)
    (risk,) = examine(Declares(torch.bfloat16, respects=False).eval(), x, fixes=False).of("risk")
    assert (risk.kind, risk.op) == ("declared", "lin.compute_dtype")
    assert examine(Declares(torch.bfloat16, respects=True).eval(), x, fixes=False).faults == ()


class Normalizes(nn.Module):
    """Divides by a peak that numpy found, and numpy takes no bfloat16."""

    def __init__(self, *, widens):
        super().__init__()
        self.project, self.widens = nn.Linear(8, 8), widens

    def forward(self, x):
        y = self.project(x)
        wide = y.float() if self.widens else y
        return y / torch.from_numpy(np.abs(wide.numpy()).max(axis=-1, keepdims=True))


def test_what_comes_back_from_numpy_in_the_format_that_the_code_chose_for_it_is_no_stray():
    torch.manual_seed(0)
    x = torch.randn(3, 8).bfloat16()
    refused = examine(Normalizes(widens=False).bfloat16(), x, fixes=False)
    assert refused.patches[0].diff.count("\n+ ") == 1
    assert "y.float().numpy()" in refused.patches[0].diff or "wide.float().numpy()" in refused.patches[0].diff
    assert not examine(Normalizes(widens=True).bfloat16(), x, fixes=False).faults


class FoldsUnderAutocast(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(6, 6)
        self.down, self.up = nn.Parameter(torch.randn(6, 2)), nn.Parameter(torch.randn(2, 6))

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            parametrize.register_parametrization(self.base, "weight", Fold(self.down, self.up))
            y = self.base(x)
            parametrize.remove_parametrizations(self.base, "weight", leave_parametrized=False)
        return y


class Fold(nn.Module):
    def __init__(self, down, up):
        super().__init__()
        self.down, self.up = down, up

    def forward(self, weight):
        return torch.addmm(weight, self.down, self.up)


def test_a_fold_of_parameters_keeps_their_format_and_its_call_drifts_as_its_output_does():
    torch.manual_seed(0)
    first = examine(FoldsUnderAutocast(), torch.randn(2, 6), fixes=False).patches[0]
    assert first.verified
    assert 'torch.autocast("cpu", enabled=False)' in first.diff
    assert first.relative_error > torch.finfo(torch.bfloat16).eps / 100  # the layer itself runs in bfloat16


def _range_of(table, rows=None):
    if rows is not None:
        return table.amax(rows) - table.amin(rows)
    top = torch.max(table)
    return top - torch.min(table)


class Ranges(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(8, 8).to(torch.float8_e4m3fn), requires_grad=False)

    def forward(self, x):
        return x / _range_of(self.table)


def test_what_several_lines_of_a_function_refuse_is_cast_where_the_function_is_called():
    torch.manual_seed(0)
    first = examine(Ranges(), torch.randn(2, 8), fixes=False).patches[0]
    assert first.verified
    assert [line for line in first.diff.splitlines() if line.startswith("+ ")] == [
        "+        return x / _range_of(self.table.to(torch.float32))"
    ]
