"""Which mixing is a fault: each rule on a model of a few lines, with the line and the operands told."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn import functional as functional_api

from precision_eval.doctor.examination import examine

D = 8


def told(model, *inputs):
    return examine(model.eval().requires_grad_(False), *inputs, fixes=False, compiled=False)


def half(*shape):
    return torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape).half()


class Projecting(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(D, D)


class Added(nn.Module):
    """A buffer is added, and a part follows."""

    def __init__(self, after=None, dtype=torch.float32):
        super().__init__()
        self.project = nn.Linear(D, D).half()
        self.register_buffer("offset", torch.ones(D, dtype=dtype))
        self.after = after or nn.Identity()

    def forward(self, x):
        return self.after(self.project(x) + self.offset)  # here


class Contained(Added):
    def forward(self, x):
        x = self.project(x)
        return (x + self.offset).to(x.dtype)


class Deliberate(Added):
    def forward(self, x):
        return (self.project(x) + self.offset.half().float()).to(x.dtype)


def test_a_stray_buffer_that_reaches_the_output_is_a_fault_at_its_line():
    found = told(Added(), half(2, D))
    first = found.first_split
    assert (found.status, first.kind, first.severity, first.op) == ("passed", "promotion", "fault", "add")
    assert first.place.text.endswith("# here")
    assert first.place.function == "Added.forward"
    assert [(o.name, o.dtype, o.brought_by, o.expression) for o in first.operands] == [
        ("left", "float16", "input x", "self.project(x)"),
        ("right", "float32", "buffer offset", "self.offset"),
    ]
    assert "reached the model's output" in first.reason


def test_a_cast_to_a_promoted_tensors_dtype_carries_the_promotion():
    class CastBack(Added):
        def forward(self, x):
            x = self.project(x) + self.offset
            return self.project(self.project(x.to(torch.float16)).to(x.dtype))

    found = told(CastBack(), half(2, D))
    assert (found.first_split.kind, found.first_split.op, found.raised.op) == ("promotion", "add", "linear")
    assert found.raised.module == "project"
    assert [step.what for step in found.raised.operands[0].history] == ["buffer offset", "add", "cast from float16"]


class Cache(Projecting):
    """Writes a step's values in one of several ways."""

    def __init__(self, way):
        super().__init__()
        self.way = way
        self.register_buffer("cache", torch.zeros(4, D, dtype=torch.float16))

    def forward(self, x):
        value = self.project(x)
        if self.way == "slice":
            self.cache[:2] = value
        elif self.way == "copy":
            self.cache[:2].copy_(value)
        elif self.way == "index":
            self.cache[torch.tensor([0, 1])] = value
        else:
            self.cache[:2].add_(value)
        return self.cache.clone()


@pytest.mark.parametrize("way", ["slice", "copy", "add"])
def test_a_narrower_cache_is_written_in_silence(way):
    found = told(Cache(way), torch.ones(2, D))
    first = found.first_split
    assert (found.status, first.kind, first.severity) == ("passed", "downcast", "fault")
    assert {operand.dtype for operand in first.operands} == {"float16", "float32"}
    assert "buffer cache in float32" in found.patch.origin


def test_an_index_refuses():
    found = told(Cache("index"), torch.ones(2, D))
    assert (found.status, found.first_split.kind, found.first_split.op.strip("_")) == ("raised", "raise", "setitem")


class Homecoming(nn.Module):
    """A float32 rotation written into a half cache, in a half model."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(D, D).half()
        self.register_buffer("cache", torch.zeros(2, D).half())

    def forward(self, x):
        self.cache[:] = self.project(x).float().cos()
        return self.cache.clone()


def test_a_norm_wider_than_its_input_is_a_risk():
    model = nn.Sequential(nn.Linear(D, D).half(), nn.LayerNorm(D))
    (finding,) = told(model, half(2, D)).findings
    assert (finding.kind, finding.severity, finding.module) == ("mixed_norm", "risk", "1")
    assert told(model, half(2, D)).patch.diff == ""  # the line is torch's own


class Kept(nn.Module):
    _keep_in_fp32_modules = ("wo",)

    def __init__(self):
        super().__init__()
        self.up, self.wo = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x):
        return self.wo(self.up(x).to(self.wo.weight.dtype))


def test_half_on_a_module_that_its_class_keeps_wide():
    first = told(Kept().half(), half(2, D)).first_split
    assert (first.kind, first.module) == ("kept_narrowed", "wo")
    assert first.reason.endswith("it is stored in float16, and its values overflow it")
    kept = Kept().half()
    kept.wo.float()
    assert told(kept, half(2, D)).faults == ()
    assert told(Kept().bfloat16(), torch.ones(2, D, dtype=torch.bfloat16)).faults == ()
    kept = Kept().bfloat16()
    kept._keep_in_fp32_modules_strict = ("wo",)
    first = told(kept, torch.ones(2, D, dtype=torch.bfloat16)).first_split
    assert first.reason.endswith("it is stored in bfloat16, and it holds too few digits")


def test_an_operation_that_knows_no_such_dtype_is_an_error_of_dtypes():
    class Repeated(nn.Module):
        def forward(self, x):
            return torch.repeat_interleave(x, (torch.arange(D) % 2).float(), dim=1)

    found = told(Repeated(), torch.ones(2, D))
    assert (found.status, found.first_split.kind, found.first_split.op) == ("raised", "raise", "repeat_interleave")


def test_what_autocast_does_is_no_fault_and_is_told():
    class Cast(Projecting):
        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return x + self.project(x)

    found = told(Cast(), torch.ones(2, D))
    assert found.faults == ()
    assert {"op": "linear", "operands": ["float32"] * 3, "result": "bfloat16", "count": 1} in found.autocast
    assert (found.recast["parameters"], found.recast["stored_bytes"]) == (2, 4 * (D * D + D))
    assert found.recast["copies_bytes"] == 2 * (D * D + D)


def test_attention_backends_and_dead_casts():
    class Attending(nn.Module):
        def forward(self, x):
            x = x.half().float()
            return F.scaled_dot_product_attention(x, x, x)

    found = told(Attending(), torch.ones(1, 2, 4, D))
    assert [(one["operands"], one["count"]) for one in found.backends] == [(["float32"] * 3, 1)]
    assert found.backends[0]["backend"] in ("flash", "math")
    assert [(cast["from"], cast["to"]) for cast in found.dead_casts] == [("float32", "float16")]


def test_values_that_a_cast_loses_and_the_first_that_is_not_finite():
    class Losing(nn.Module):
        def forward(self, x):
            x = x.half()
            return x * 4.0

    found = told(Losing(), torch.tensor([1.0, 1e5, 1e-9, 1e-5, 4e4, -3e4]))
    (lost,) = found.lost
    assert {name: lost[name] for name in ("total", "overflowed", "flushed", "subnormal")} == {
        "total": 6, "overflowed": 1, "flushed": 1, "subnormal": 1,
    }  # fmt: skip
    (halves,) = found.ranges
    # after the cast 1e5 is infinite and 40000 beyond half of 65504; after the product 4e4 and -3e4 are infinite too
    assert (halves.total, halves.non_finite, halves.near_overflow, halves.subnormal) == (12, 4, 1, 2)
    assert found.status == "non_finite"
    assert (found.first_split.kind, found.first_split.severity) == ("first_non_finite", "fault")
    assert found.first_split.place.text == "x = x.half()"


class Attends(nn.Module):
    """A float32 query meets half keys in a call by the function's full name, or by another import of its module."""

    def __init__(self, written):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D, dtype=torch.float16))
        self.written = written

    def forward(self, query, key):
        if self.written == "full":
            return torch.nn.functional.scaled_dot_product_attention(query, key * self.weight, key)
        if self.written == "part":
            return nn.functional.scaled_dot_product_attention(query, key * self.weight, key)
        return functional_api.scaled_dot_product_attention(query, key * self.weight, key)


@pytest.mark.parametrize("written", ["full", "part", "alias"])
def test_a_module_that_holds_a_function_is_no_operand(written):
    diagnosis = told(Attends(written), torch.ones(1, 1, 2, D), half(1, 1, 3, D))
    assert [operand.expression for operand in diagnosis.raised.operands] == ["query", "key * self.weight", "key"]
    assert "(query, (key * self.weight).to(query.dtype), key.to(query.dtype))" in diagnosis.patch.diff
    assert "functional.dtype" not in diagnosis.patch.diff


def test_complex_tensors_are_followed_through_a_spectrum():
    class Spectrum(nn.Module):
        def __init__(self):
            super().__init__()
            self.project = nn.Linear(9, D).half()
            self.register_buffer("window", torch.hann_window(16))

        def forward(self, x):
            spectrum = torch.stft(x.float(), 16, 8, window=self.window, return_complex=True)
            return self.project(spectrum.abs().transpose(1, 2))

    raised = told(Spectrum(), half(1, 64)).raised
    assert [(step.dtype, step.what) for step in raised.operands[0].history] == [
        ("float16", "input x"),
        ("float32", "cast from float16"),
        ("float32", "abs"),
    ]


def test_the_origin_is_the_stray_parameter_and_not_a_residual_widened_on_purpose():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(D, dtype=torch.float16))
            self.project = nn.Linear(D, D).half()

        def forward(self, x):
            hidden = self.gain * x.to(self.gain.dtype)
            return x.float() + self.project(hidden)

    model = nn.Sequential(Block(), Block())
    model[1].gain.data = model[1].gain.data.float()
    diagnosis = told(model, half(2, D))
    assert (diagnosis.first_split.kind, diagnosis.first_split.module) == ("raise", "1.project")
    assert diagnosis.first_split.operands[0].brought_by == "parameter 1.gain"


def test_an_output_in_a_cache_alone_is_held_to_the_reference_too():
    class Cache:
        def __init__(self, keys):
            self.layers = [{"keys": keys}]

    class Fills(Projecting):
        def forward(self, x):
            return Cache(self.project(x))

    diagnosis = examine(Fills().half().eval().requires_grad_(False), half(2, D), latency=False)
    assert not any("no floating values" in doubt for doubt in diagnosis.doubts)
    assert all(remedy.relative_error is not None for remedy in diagnosis.remedies if remedy.status == "passed")


class PlaceholderWeight(nn.Module):
    """Projections of their own beside an empty float32 stand-in for the joint one, as WavLM's attention has them."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        weights = {f"{name}_proj_weight": getattr(self, name).weight for name in "qkv"}
        bias = torch.cat((self.q.bias, self.k.bias, self.v.bias))
        return nn.functional.multi_head_attention_forward(
            x, x, x, 8, 2, torch.empty([0]), bias, None, None, False, 0.0, self.out.weight, self.out.bias,
            training=False, need_weights=False, use_separate_proj_weight=True, **weights,
        )[0]  # fmt: skip


class Masked(nn.Module):
    def forward(self, x):
        scores = torch.full((2, D), float("-inf"), dtype=x.dtype).triu(1) + x
        return scores.softmax(dim=-1)


class Scaled(Added):
    def __init__(self):
        super().__init__(dtype=torch.float16)
        self.offset = torch.tensor(2.0)  # without dimensions, it promotes nothing


@pytest.mark.parametrize(
    ("model", "inputs", "findings"),
    [
        (lambda: Added(nn.Linear(D, D).half(), dtype=torch.float16), half(2, D), []),
        (Scaled, half(2, D), []),
        (Masked, half(2, D), []),
        (lambda: PlaceholderWeight().half(), half(4, 1, D), []),
        (Contained, half(2, D), [("promotion", "risk")]),
        (Deliberate, half(2, D), [("promotion", "note")]),
        (Homecoming, half(2, D), [("downcast", "note")]),
    ],
    ids=["one dtype", "no dimensions", "mask", "placeholder", "contained", "deliberate", "homecoming"],
)
def test_what_is_meant_or_harmless_is_no_fault(model, inputs, findings):
    assert [(finding.kind, finding.severity) for finding in told(model(), inputs).findings] == findings


def test_a_mask_that_is_not_in_the_querys_dtype_is_a_risk():
    class Masked(nn.Module):
        def forward(self, x, mask):
            return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    mask = torch.zeros(2, 2)
    (finding,) = told(Masked(), half(1, 1, 2, D), mask).findings
    assert (finding.kind, finding.severity) == ("mixed_mask", "risk")
    assert "invalid dtype for bias" in finding.reason
    assert [operand.name for operand in finding.operands] == ["query", "mask"]
    assert told(Masked(), half(1, 1, 2, D), mask.half()).findings == ()


def test_what_was_widened_on_purpose_and_makes_the_output_wide_is_a_risk():
    class Adapted(Added):
        def forward(self, x):
            return self.project(x) + self.offset * x.float().mean()

    (finding,) = (f for f in told(Adapted(), half(2, D)).findings if f.op == "add")
    assert (finding.severity, finding.result) == ("risk", "float32")
    assert "the model's output is float32" in finding.reason


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_sum_held_in_less_than_the_models_dtype_is_a_fault(dtype):
    class Sums(Added):
        def forward(self, x):
            total = torch.zeros(2, D, dtype=dtype)
            total += 0.1 * self.project(x)
            return x + total.float()

    model = Sums()
    model.project.float()
    found = told(model, torch.ones(2, D)).faults
    assert [fault.kind for fault in found] == (["downcast"] if dtype is torch.float16 else [])


def test_a_cast_back_to_the_dtype_that_came_in_is_not_asked_for():
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(D))
            self.project = nn.Linear(D, D)

        def forward(self, x):
            dtype = x.dtype
            wide = x.float()
            return self.project(self.gain * (wide * torch.rsqrt(wide.square().mean() + 1e-6)).to(dtype))  # here

    found = told(Normed(), half(2, D))
    assert found.first_split.place.text.endswith("# here")
    assert (found.first_split.op, found.first_split.severity) == ("mul", "fault")
    assert told(Normed(), torch.ones(2, D)).findings == ()


@pytest.mark.parametrize(("share", "severity"), [(1.0, "fault"), (1e-3, "risk")])
def test_a_position_rounded_before_its_sine_is_told_where_it_is_rounded(share, severity):
    class Placed(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(D))

        def forward(self, x):
            steps = (torch.arange(D) + first).to(x.dtype)  # here
            return self.gain * x + share * steps.float().sin().to(x.dtype)

    first = 5001
    (finding,) = (f for f in told(Placed().bfloat16(), torch.ones(2, D).bfloat16()).findings if f.kind == "drift")
    assert (finding.place.text[-6:], finding.severity) == ("# here", severity)
    why = {"fault": "rounding to bfloat16 here", "risk": "an angle whose sine is taken is off by"}
    assert why[severity] in finding.reason
    first = 0
    assert told(Placed().bfloat16(), torch.ones(2, D).bfloat16()).of("fault") == ()
    assert told(Placed().bfloat16(), torch.ones(2, D).bfloat16()).of("risk") == ()


@pytest.mark.parametrize("returned", [torch.float16, torch.float32])
def test_an_output_that_is_returned_in_half_costs_what_half_costs(returned):
    class Returns(Projecting):
        def forward(self, x):
            return self.project(x).half().to(returned)

    found = told(Returns(), torch.linspace(0, 1, 2 * D).reshape(2, D))
    assert [fault.kind for fault in found.faults] == (["drift"] if returned is torch.float32 else [])


@pytest.mark.parametrize(("is_codebook", "severity"), [(True, "risk"), (False, "fault")])
def test_a_promotion_to_what_the_next_product_is_stored_in_goes_where_it_belongs(is_codebook, severity):
    class Nearest(nn.Module):
        def __init__(self):
            super().__init__()
            self.project, self.larger = nn.Linear(D, D), nn.Linear(D, 4 * D)
            self.codes = nn.Parameter(torch.eye(D))

        def forward(self, x):
            near = self.codes[:2] + self.project(x)  # here
            return (near @ (self.codes if is_codebook else near.mT)).to(x.dtype)

    model = Nearest().half()
    model.codes.data = model.codes.data.float()
    found = told(model, half(2, D))
    assert (found.first_split.place.text[-6:], found.first_split.severity) == ("# here", severity)


class Narrowing(Projecting):
    """A float32 model that does something to what it carries."""

    def __init__(self, carried):
        super().__init__()
        self.carried = carried

    def forward(self, x):
        return self.project(self.carried(self.project(x)))


def _through_a_dictionary(x):
    cache = {"keys": torch.zeros(x.shape, dtype=torch.float16)}
    cache["keys"][:, :1] = x[:, :1]  # here
    return x + cache["keys"].to(x.dtype)


def _through_half(x):
    half = x.half()  # here
    return x + half.float()


def _beside_half(x):
    half = x.half()
    return torch.cat([half[:1], x])  # here


def _late_sine(x):
    positions = torch.arange(3001, 3001 + D, dtype=x.dtype)  # here
    return x + (positions / 3.7).sin()


def _sum_of_squares(x):
    return 300 * x / (300 * x).pow(2).sum(-1, keepdim=True).sqrt()  # here


def _equation(x):
    return torch.einsum("bd,bd->bd", 900 * x, 900 * x) / 1e6  # here


@pytest.mark.parametrize(
    ("carried", "changes"),
    [
        (_late_sine, ["dtype=torch.float32)", ".sin().to(x.dtype)"]),
        (_sum_of_squares, ["(300 * x).to(torch.float32)"]),
        (_equation, ["(900 * x).to(torch.float32)"]),
    ],
)
def test_what_loses_digits_or_range_in_half_is_widened_there_and_cast_back(carried, changes):
    torch.manual_seed(0)
    model, x = Narrowing(carried).half(), torch.randn(2, D).half()
    verified = [patch for patch in told(model, x).patches if patch.verified]
    assert any(all(change in patch.diff for change in changes) for patch in verified)
    assert torch.finfo(torch.float16).bits == torch.finfo(model(x).dtype).bits  # no file was changed


class KeywordMask(nn.Module):
    """Gives torch's attention a mask of float64 by its name."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(D, 2, batch_first=True)

    def forward(self, x):
        mask = torch.from_numpy(np.zeros((2, 2)))
        return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]


def test_what_a_module_is_given_by_name_is_cast_there():
    patch = told(KeywordMask(), torch.randn(1, 2, D)).patches[0]
    assert patch.verified
    assert "attn_mask=mask.to(x.dtype)" in patch.diff


@pytest.mark.parametrize(
    ("carried", "advice", "change"),
    [
        (
            _through_a_dictionary,
            "keep the result of __setitem__",
            '+    cache = {"keys": torch.zeros(x.shape, dtype=torch.float32)}',
        ),
        (_through_half, "keep the result of half in float32 there", "+    half = x  # here"),
        (_beside_half, "leave out the cast to float16 at ", "+    half = x"),
    ],
)
def test_what_a_float32_model_rounds_to_half_on_the_way_is_a_fault(carried, advice, change):
    torch.manual_seed(0)
    diagnosis = told(Narrowing(carried), torch.randn(2, D))
    (fault,), (patch,) = diagnosis.faults, diagnosis.patches
    assert (patch.origin.startswith(advice), patch.verified) == (True, True)
    assert [line for line in patch.diff.splitlines() if line.startswith("+ ")] == [change]
    assert fault.place.text[-6:] == "# here"
    assert "rounding to float16 here brings" in fault.reason
    assert told(Narrowing(lambda x: x + x.double().float()), torch.randn(2, D)).findings == ()


@pytest.mark.parametrize(
    ("places", "faults"), [(lambda steps: steps.cumsum(0), 1), (lambda steps: steps.float().cumsum(0), 0)]
)
def test_a_count_beyond_what_its_format_counts_to_is_a_fault_where_it_is_counted(places, faults):
    class Frames(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(D))

        def forward(self, x):
            ends = places(torch.full((64,), 97.0, dtype=x.dtype))[-D:]
            return (torch.arange(5400.0, 6400.0)[:, None] < ends).to(x.dtype) @ (self.gain * x).T

    torch.manual_seed(0)
    found = told(Frames().bfloat16(), torch.randn(2, D).bfloat16()).faults
    assert len(found) == faults
    assert all(fault.op == "cumsum" and "rounding to bfloat16" in fault.reason for fault in found)


def test_what_runs_inside_vmap_is_examined():
    class Ensemble(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.Parameter(torch.ones(3, D, D))

        def forward(self, x):
            return torch.vmap(lambda weight: x @ weight)(self.weights).mean(0)

    assert told(Ensemble().half(), torch.ones(2, D).half()).findings == ()
    raised = told(Ensemble(), torch.ones(2, D).half()).raised
    assert raised.op == "matmul"


def _log_of_nothing(x):
    likely = (30 * x).softmax(-1)  # here
    return likely.log()


def test_what_is_rounded_to_nothing_is_told_where_that_happens_and_not_where_it_shows():
    torch.manual_seed(0)
    diagnosis = told(Narrowing(_log_of_nothing).half(), torch.randn(2, D).half())
    split, patch = diagnosis.first_split, diagnosis.patches[0]
    assert (diagnosis.status, split.place.text[-6:]) == ("non_finite", "# here")
    assert "makes log at" in split.reason
    assert patch.verified
    assert "(30 * x).to(torch.float32)" in patch.diff


class Guided(Projecting):
    """Follows the gradient of a loss that half does not hold."""

    def forward(self, x):
        with torch.enable_grad():
            given = x.detach().requires_grad_()
            loss = (self.project(given).square() * 65536).sum()  # here
            (slope,) = torch.autograd.grad(loss, given)
        return self.project(x - slope / 1024)


def test_a_gradient_that_overflows_is_told_at_its_loss_and_not_where_a_result_was_rounded():
    torch.manual_seed(0)
    diagnosis = told(Guided().half(), torch.randn(2, D).half())
    assert (diagnosis.status, diagnosis.first_split.place.text[-6:]) == ("non_finite", "# here")


def _spread_by_squares(x):
    x = x + 8
    return x / (x.square().mean(-1, keepdim=True) - x.mean(-1, keepdim=True).square()).sqrt()  # here


def _spread_in_two_passes(x):
    x = x + 8
    return x / x.float().var(-1, keepdim=True, unbiased=False).sqrt().to(x.dtype)


def _running_mean(x):
    total = (x + 1).repeat(1, 60).cumsum(1)  # here
    return x + (total[:, -D:] - total[:, -2 * D : -D]) / D


def _looked_up(x):
    ids = torch.arange(2000, 2000 + 2 * D).view(2, D).to(x.dtype)  # here
    return x + (ids.long() % 3).to(x.dtype)


def _in_eight_bits(x):
    kept = x.to(torch.float8_e4m3fn)  # here
    return kept.to(x.dtype)


def _partly_autocast(x):
    with torch.autocast("cpu", torch.bfloat16):
        return (x @ torch.eye(D)).to(x.dtype)  # here


@torch.library.custom_op("test_rules::half_gate", mutates_args=())
def half_gate(x: torch.Tensor) -> torch.Tensor:
    """Work in half inside."""
    narrow = x.half()  # here
    return (narrow * narrow.sigmoid()).to(x.dtype)


def _gated(x):
    return half_gate(x)


@pytest.mark.parametrize(
    ("carried", "dtype", "severity"),
    [
        (_spread_by_squares, torch.float16, "fault"),
        (_spread_in_two_passes, torch.float16, None),
        (_running_mean, torch.float16, "fault"),
        (_looked_up, torch.bfloat16, "fault"),
        (_looked_up, torch.float32, None),
        (_in_eight_bits, torch.bfloat16, "risk"),
        (_partly_autocast, torch.float32, "risk"),
        (_gated, torch.float32, "fault"),
        (_gated, torch.float16, None),
    ],
)
def test_the_line_whose_rounding_outweighs_all_others_is_told(carried, dtype, severity):
    torch.manual_seed(0)
    diagnosis = told(Narrowing(carried).to(dtype), torch.randn(2, D).to(dtype))
    split = diagnosis.first_split
    assert (split and split.severity) == severity
    assert split is None or (split.kind, split.place.text[-6:]) == ("drift", "# here")
