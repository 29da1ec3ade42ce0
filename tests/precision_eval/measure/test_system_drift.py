"""Drift of whole systems on small ones of our own, and on every registered system at size tiny."""

import copy
import json
from contextlib import contextmanager
from dataclasses import asdict
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from precision_eval.cases.base import BuiltCase
from precision_eval.cases.systems import CASES, case_by_id
from precision_eval.cases.systems.system import System, widened
from precision_eval.core.cells import Cell, Options
from precision_eval.core.errors import ParameterError, UnsupportedError
from precision_eval.fixes import FIXES, fix_by_id
from precision_eval.fixes.sites import SITES
from precision_eval.measure import generic
from precision_eval.measure import system_drift as measured
from precision_eval.measure.system_drift import system_drift
from precision_eval.trace import cast_replay
from precision_eval.trace.cast_replay import ReplayError, record_casts, run_in_float64

WIDTH, HEADS, HEAD_DIM, SLOT_COUNT, START, NEW = 32, 2, 16, 24, 18, 3
CURES = [fix.id for fix in FIXES if fix.id not in ("as_shipped", "dynamo_fallback")]
WRITES = {
    "slice": lambda cache, at, new: cache.__setitem__((slice(None), slice(None), slice(START, START + NEW)), new),
    "setitem": lambda cache, at, new: cache.__setitem__((slice(None), slice(None), at), new),
    "index_put": lambda cache, at, new: cache.transpose(0, 2).index_put_((at,), new.transpose(0, 2)),
    "index_copy": lambda cache, at, new: cache.index_copy_(2, at, new),
}
UNCURED = {("autocast", write) for write in WRITES if write != "slice"}  # it casts no cache write, so the call raises


class Block(System):
    """Pre-norm attention with float32 weights, over a float16 cache that each call writes three slots of."""

    landed = "toy #1"

    def __init__(self, write="slice", *, outputs=1):
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.write, self.outputs, self.compute_dtype = write, outputs, torch.float16
        self.norm = nn.RMSNorm(WIDTH, eps=1e-5)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) * WIDTH**-0.5
        position = torch.arange(START, START + NEW)
        cache = (torch.randn((1, HEADS, SLOT_COUNT, HEAD_DIM), generator=generator).half() for _ in range(2))
        for name, tensor in zip(("key", "value", "position"), (*cache, position), strict=True):
            self.register_buffer(name, tensor)
        self.register_buffer("mask", torch.arange(SLOT_COUNT) <= position[:, None])  # (s, slots)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, HEAD_DIM)).permute(2, 0, 3, 1, 4)  # (B, H, s, d)
        if self.is_upstream:
            q, k, v = (t.to(self.compute_dtype) for t in (q, k, v))
        for cache, new in ((self.key, k), (self.value, v)):
            WRITES[self.write](cache, self.position, new)
        attended = F.scaled_dot_product_attention(q, self.key, self.value, attn_mask=self.mask)
        if self.is_upstream:
            attended = attended.to(self.out.weight.dtype)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return (x, (2 * widened(x)).softmax(-1)) if self.outputs == 2 else x


def half(array):
    return array.astype(np.float16).astype(np.float64)


def brain(array):
    return torch.from_numpy(np.ascontiguousarray(array)).bfloat16().double().numpy()


def by_hand(block, x, **rounding):
    """The block in float64 with numpy; `rounding` names what is rounded, and how."""

    def rounded(name, array):
        return rounding.get(name, lambda exact: exact)(array)

    p = {n: rounded("stored", t.detach().double().numpy()) for n, t in block.state_dict().items() if n != "mask"}
    weight = {n: rounded("weight", array) for n, array in p.items()}
    x = rounded("stored", x.double().numpy())
    normed = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * p["norm.weight"]
    qkv = rounded("input", normed) @ weight["qkv.weight"].T + weight["qkv.bias"]
    q, k, v = (part.reshape(1, NEW, HEADS, HEAD_DIM).swapaxes(1, 2) for part in np.split(qkv, 3, axis=-1))
    key, value = p["key"].copy(), p["value"].copy()
    key[:, :, START : START + NEW], value[:, :, START : START + NEW] = rounded("written", k), rounded("written", v)
    logits = rounded("query", q) @ rounded("cache", key).swapaxes(-1, -2) / np.sqrt(HEAD_DIM)
    weights = np.exp(logits) * block.mask.numpy()
    attended = weights / weights.sum(-1, keepdims=True) @ rounded("cache", value)
    attended = attended.swapaxes(1, 2).reshape(1, NEW, WIDTH)
    return x + attended @ weight["out.weight"].T + weight["out.bias"]


def case_of(*args, **kwargs):
    x = torch.randn((1, NEW, WIDTH), generator=torch.Generator().manual_seed(8))
    return BuiltCase(Block(*args, **kwargs).eval(), (x,))


def drift_of(built, fix_id, mode="eager"):
    with fix_by_id(fix_id).applied(copy.deepcopy(built.model), mode=mode) as call:
        return system_drift(built, call)


def state_of(built):
    tensors = {**built.model.state_dict(), "input": built.inputs[0]}
    return {name: (t.data_ptr(), t.dtype, t.clone()) for name, t in tensors.items()}


def assert_closes(split):
    parts = split.input_cast_mse + split.compute_mse + split.output_rounding_mse + split.cross_mse
    assert parts == pytest.approx(split.total_mse, rel=1e-12)


class One(System):
    """One float16 Linear; `gain` is what its projects' fix multiplies with."""

    landed = "toy #2"

    def __init__(self, gain=1.0):
        super().__init__()
        self.linear = nn.Linear(2, 2, bias=False)
        self.linear.weight.data = torch.tensor([[1.0, 0.0], [1.0, 2.0]]).half()
        self.gain = gain

    def forward(self, x):
        x = self.linear(x.to(self.linear.weight.dtype) if self.is_upstream else x)
        return x * self.gain if self.is_upstream else x


def test_one_linear_by_hand():
    # 1 + 2**-12 becomes 1 in float16, 3 stays: reference (1 + 2**-12, 7 + 2**-12), on cast inputs and found (1, 7)
    built = BuiltCase(One().eval(), (torch.tensor([[1 + 2**-12, 3.0]]),))
    found = drift_of(built, "query_to_half")
    split = found.split
    assert split.input_cast_mse == split.total_mse == 2**-24
    assert (split.compute_mse, split.output_rounding_mse, split.cross_mse) == (0, 0, 0)
    assert found.rms_error == 2**-12
    assert found.relative_error == pytest.approx(
        np.sqrt(2 * 2**-24 / ((1 + 2**-12) ** 2 + (7 + 2**-12) ** 2)), rel=1e-14
    )
    assert (found.yardstick_dtype, found.rms_ratio, found.outputs, found.doubts) == ("float16", None, (), ())
    assert found.casts == ({"site": "linear", "operand": "input", "from": "float32", "to": "float16", "count": 1},)
    # the other way the weight is cast, which loses nothing; float32 holds the sums
    up = drift_of(built, "kv_to_query")
    assert (up.relative_error, up.casts, up.yardstick_dtype) == (0, (), "float32")
    # bfloat16 rounds the stored input to 1 as well
    stored = drift_of(built, "bfloat16")
    assert (stored.split.input_cast_mse, stored.casts) == (2**-24, ())
    # the source's own cast is compute: here all of it, as the result is a float16 number
    own = drift_of(built, "upstream").split
    assert (own.input_cast_mse, own.total_mse) == (0, 2**-24)
    assert own.output_rounding_mse == pytest.approx(2**-24, rel=1e-3)  # 1 + 2**-12 and 7 + 2**-12 round to 1 and 7


@pytest.mark.parametrize(("fix_id", "write"), [pair for pair in product(CURES, WRITES) if pair not in UNCURED])
def test_every_fix_closes_repeats_and_leaves_the_model_alone(fix_id, write):
    built = case_of(write, outputs=2)
    before, names = state_of(built), [vars(site.owner).get(site.name) for site in SITES]
    found = drift_of(built, fix_id)
    assert found == drift_of(built, fix_id)
    for name, (address, dtype, values) in state_of(built).items():
        assert (address, dtype) == before[name][:2]
        assert torch.equal(values, before[name][2])
    assert not built.model.is_upstream
    assert names == [vars(site.owner).get(site.name) for site in SITES]
    json.dumps(asdict(found), allow_nan=False)
    assert_closes(found.split)
    (probabilities,) = found.outputs
    assert_closes(probabilities.split)
    assert found.doubts == ()
    low, high = {
        "full_float32": (1e-8, 1e-6),
        "bfloat16": (1e-3, 3e-2),
        "autocast": (1e-4, 1e-2),
        "float16": (1e-4, 3e-3),
    }.get(fix_id, (1e-6, 1e-3))
    assert low < found.relative_error < high
    assert found.assessment is None


def test_float64_copy_is_the_model_by_hand():
    built = case_of("index_copy")
    twin, _ = run_in_float64(built.model.in_float64(), (built.inputs[0].double(),))
    np.testing.assert_allclose(twin.numpy(), by_hand(built.model, built.inputs[0]), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("fix_id", "write", "rounding"),
    [
        ("query_to_half", "slice", {"query": half}),
        ("query_to_half", "setitem", {"query": half, "written": half}),
        ("query_to_half", "index_put", {"query": half, "written": half}),
        ("kv_to_query", "index_copy", {"written": half}),
        ("kv_to_query", "slice", {}),
        ("full_float32", "setitem", {}),
        ("float16", "setitem", {"stored": half}),
        ("bfloat16", "slice", {"stored": brain}),
        ("autocast", "slice", {"input": brain, "weight": brain, "cache": brain}),
        ("upstream", "setitem", {}),
    ],
)
def test_input_cast_by_hand(fix_id, write, rounding):
    built = case_of(write)
    reference = by_hand(built.model, built.inputs[0])
    if "weight" in rounding:  # attended is of autocast's dtype already, the cache is cast at its site
        weights = {n for n, _ in built.model.named_parameters() if not n.startswith("norm")}
        assert weights == {"qkv.weight", "qkv.bias", "out.weight", "out.bias"}
    expected = np.square(by_hand(built.model, built.inputs[0], **rounding) - reference).mean()
    split = drift_of(built, fix_id).split
    assert split.input_cast_mse == pytest.approx(expected, rel=1e-6, abs=1e-30)
    assert (expected > 1e-12) == bool(rounding)  # far above float64's own error, so the comparison says something


def test_what_upstream_stores_is_input_cast():
    class Stores(One):
        def __init__(self):
            super().__init__()
            self.linear.weight.data = torch.tensor([[1 + 2**-12, 0.0], [0.0, 2.0]])

        @contextmanager
        def upstream(self):
            data = self.linear.weight.data
            with super().upstream():
                self.linear.weight.data = data.half()
                try:
                    yield
                finally:
                    self.linear.weight.data = data

    built = BuiltCase(Stores().eval(), (torch.ones(1, 2),))
    split = drift_of(built, "upstream").split
    assert (split.input_cast_mse, split.total_mse) == (2**-25, 2**-25)  # 2**-12 in one of two outputs
    assert built.model.linear.weight[0, 0] == 1 + 2**-12


def record_another_fix(model, inputs, *, agreement):
    return record_casts(model, inputs, agreement="storage_to_activation")


def record_rounded_otherwise(model, inputs, *, agreement):  # as torch's encoder rounds when it is not fused
    tape, output = record_casts(model, inputs, agreement=agreement)
    return tape, output + 2**-20


@pytest.mark.parametrize("other", [record_another_fix, record_rounded_otherwise])
def test_a_recording_of_another_computation_is_caught_where_anything_is_cast(monkeypatch, other):
    expected = drift_of(case_of(), "full_float32").split
    monkeypatch.setattr(measured, "record_casts", other)
    assert drift_of(case_of(), "full_float32").split == expected
    unsplit = drift_of(case_of(), "query_to_half")
    assert (unsplit.split, unsplit.casts) == (None, ())
    (doubt,) = unsplit.doubts
    assert "recording changed the output of 'query_to_half'" in doubt


def test_a_recorder_blind_for_casts_is_seen_by_the_figures_by_hand(monkeypatch):
    real = drift_of(case_of(), "query_to_half")
    monkeypatch.setattr(cast_replay.Cast, "rounds", property(lambda cast: False))
    blind = drift_of(case_of(), "query_to_half")
    assert blind.split.input_cast_mse == 0 < real.split.input_cast_mse
    assert blind.split.total_mse == real.split.total_mse
    assert blind.casts == ()


def test_a_float64_copy_that_leaves_float64_is_refused():
    class Leaky(One):
        def forward(self, x):
            return self.linear(x.float())

    with pytest.raises(ReplayError, match=r"hands linear a torch.float32 input.*widened"):
        drift_of(BuiltCase(Leaky().eval(), (torch.ones(1, 2),)), "query_to_half")


@pytest.mark.parametrize("fix", ["as_shipped", "query_to_half"])
def test_a_model_that_writes_what_names_no_dtype_into_a_half_cache_is_measured(fix):
    class Cache(nn.Module):
        def forward(self, query):
            kept = torch.zeros(1, 1, 3, 4, dtype=torch.float16)
            kept[:, :, 1] = torch.full((1, 1, 4), 0.5)
            return F.scaled_dot_product_attention(query.half(), kept, kept) * torch.eye(4)

    built = BuiltCase(Cache().eval(), (torch.zeros(1, 1, 1, 4),))
    found = drift_of(built, fix)  # equal weights: a third of one half
    assert found.doubts == ()
    assert found.relative_error == pytest.approx(abs(float(torch.tensor(1 / 6).half()) * 6 - 1))


def test_an_upstream_that_is_another_function_has_no_reference():
    built = BuiltCase(One(gain=1.001).eval(), (torch.ones(1, 2),))
    with pytest.raises(ParameterError, match=r"'upstream' is 1.0e-03 from the model as shipped"):
        drift_of(built, "upstream")


def test_bad_arguments():
    built = case_of()
    with fix_by_id("query_to_half").applied(built.model) as call, pytest.raises(ParameterError, match="on a copy"):
        system_drift(built, call)

    class Tokens(One):
        def forward(self, x):
            return super().forward(x).argmax(-1)

    with pytest.raises(UnsupportedError, match="returns a Tensor without floating values"):
        drift_of(BuiltCase(Tokens().eval(), (torch.ones(1, 2),)), "query_to_half")


def test_compiled_takes_the_casts_of_eager(monkeypatch):
    compile_graph = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, backend: compile_graph(function, backend="eager"))
    built = case_of("setitem")
    eager, compiled = drift_of(built, "query_to_half"), drift_of(built, "query_to_half", "compiled")
    assert compiled.casts == eager.casts
    assert compiled.split.input_cast_mse == eager.split.input_cast_mse
    assert compiled.relative_error == pytest.approx(eager.relative_error, rel=0.1)


@pytest.mark.parametrize(
    "case_id", [w.id for w in CASES if "drift" in w.measures and not w.id.startswith("attention-")]
)
def test_registered_systems(case_id):
    """Whatever fix works on a registered system has a drift that closes; at least one does."""
    built = case_by_id(case_id).build("tiny", device="cpu", seed=1)
    assert isinstance(built.model, System)
    before, measurable = state_of(built), 0
    for fix_id in CURES:
        try:
            with fix_by_id(fix_id).applied(copy.deepcopy(built.model)) as call:
                broken = generic._not_finite(fix_id, call(*call.prepare(built.inputs)))
        except RuntimeError:
            continue  # a status of its own, which the table of expectations holds
        if broken:
            continue
        found = drift_of(built, fix_id)
        for part in (found, *found.outputs):
            if part.split is not None:
                assert_closes(part.split)
        json.dumps(asdict(found), allow_nan=False)
        measurable += 1
    assert measurable > 0
    for name, (address, dtype, values) in state_of(built).items():
        assert (address, dtype) == before[name][:2]
        assert torch.equal(values, before[name][2])


# What a system's drift is compared with, and what is left out where that is missing.


def test_the_yardstick_is_of_what_the_last_site_returns_where_the_source_widens_that():
    class Widening(One):
        def forward(self, x):
            x = self.linear(x)
            return widened(x), widened(x).softmax(-1)

    x = torch.rand(5, 2, generator=torch.Generator().manual_seed(0))  # of one draw in a thousand each sum is exact
    found = drift_of(BuiltCase(Widening().eval(), (x,)), "float16")
    assert (found.yardstick_dtype, found.rms_ratio) == ("float16", 1.0)  # the same computation
    assert (found.outputs[0].yardstick_dtype, found.outputs[0].rms_ratio) == ("float16", 1.0)

    class Both(One):
        def forward(self, x):
            x = self.linear(x)
            return x, x.to(torch.bfloat16 if x.dtype is torch.float32 else x.dtype)

    found = drift_of(BuiltCase(Both().eval(), (torch.rand(5, 2),)), "kv_to_query")
    assert (found.yardstick_dtype, found.outputs[0].yardstick_dtype) == ("float32", "bfloat16")
    assert found.outputs[0].relative_error > 1e-4 > found.relative_error


def test_the_yardstick_of_a_source_that_hands_on_float32():
    class Embedding(One):
        def forward(self, x):
            return self.linear(widened(x) * 1.1)

    found = drift_of(BuiltCase(Embedding().eval(), (torch.rand(5, 2).half().float(),)), "query_to_half")
    assert (found.yardstick_dtype, found.rms_ratio, found.doubts) == ("float16", 1.0, ())


def test_the_yardstick_does_not_round_anew():
    """A value that float32 moves onto a tie of float16: only the cell's own rounding goes the other way there."""

    class Tie(One):
        def __init__(self):
            super().__init__()
            self.register_buffer("same", torch.eye(2))

        def forward(self, x):
            return widened(self.linear((widened(x) + 16) - 16)) @ self.same

    # float32: 1 + 3/2048, a tie, to 1 + 2/1024; float64: a little less, to 1 + 1/1024
    x = torch.tensor([[1 + 3 * 2**-11 - 2**-21, 0.0]])
    found = drift_of(BuiltCase(Tie().eval(), (x,)), "query_to_half")
    assert found.yardstick_dtype == "float32"
    assert found.rms_ratio == 2**-10 / 2**-21


def test_of_an_output_that_is_zero_drift_is_unsupported():
    built = BuiltCase(One().eval(), (torch.zeros(1, 2),))
    with pytest.raises(UnsupportedError, match="zero everywhere, so no relative error exists; use other inputs"):
        drift_of(built, "full_float32")


@pytest.mark.parametrize("error", [RuntimeError, ValueError])  # an operator's, and the LSTM's of its input's dtype
def test_a_yardstick_that_raises_is_a_doubt(error):
    class Picky(One):
        def forward(self, x):
            if x.dtype is self.linear.weight.dtype is torch.float32:
                raise error("no float32 kernel")
            return self.linear(x)

    found = drift_of(BuiltCase(Picky().eval(), (torch.rand(3, 2),)), "kv_to_query")
    assert found.doubts == ("no yardstick: plain arithmetic in float32 raises: no float32 kernel",)
    assert (found.rms_ratio, found.yardstick_dtype) == (None, "float32")
    assert_closes(found.split)


def test_a_yardstick_that_overflows_is_a_doubt():
    class Wide(One):
        def forward(self, x):
            return self.linear(x * 1e5 * 1e-5)  # beyond float16 on the way, within it at the Linear

    found = drift_of(BuiltCase(Wide().eval(), (torch.rand(3, 2) + 1,)), "query_to_half")
    assert found.doubts == ("no yardstick: plain arithmetic in float16 is not finite",)
    assert (found.rms_ratio, found.yardstick_dtype) == (None, "float16")
    assert_closes(found.split)


def test_a_split_that_overflows_is_a_doubt():
    """A clamp that only float16 passes through, as T5's, hides a weight beyond float16 from the cell alone."""

    class Clamped(One):
        def __init__(self):
            super().__init__()
            self.linear.weight.data = torch.tensor([[1e5, 0.0], [0.0, 1.0]])

        def forward(self, x):
            x = self.linear(x)
            return x.clamp(max=60000) if x.dtype is torch.float16 else x

    found = drift_of(BuiltCase(Clamped().eval(), (torch.rand(3, 2) + 1,)), "float16")
    assert found.split is None
    assert found.rms_ratio is None
    assert found.relative_error > 0.1
    assert "float64 arithmetic on the operands as cast is not finite, so the noise is not split" in found.doubts


SPELLINGS = {
    "torch.matmul": lambda x, y: torch.matmul(x, y),  # looked up at the call, as in a source
    "@": lambda x, y: x @ y,
    "method": lambda x, y: x.matmul(y),
    "mm": lambda x, y: x.mm(y),
}


class Product(nn.Module):
    """Somebody's model with a cache in half, and one product in each of its spellings."""

    def __init__(self, spelling):
        super().__init__()
        self.spelling = spelling
        self.register_buffer("cache", torch.randn(8, 4, generator=torch.Generator().manual_seed(0)).half())

    def forward(self, x):
        return SPELLINGS[self.spelling](x, self.cache)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("fix", ["kv_to_query", "query_to_half"])
def test_a_product_has_one_drift_however_it_is_spelt(fix, spelling):
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
    drifts = []
    for model in (Product(spelling), Product("torch.matmul")):
        with fix_by_id(fix).applied(copy.deepcopy(model)) as call:
            drifts.append(asdict(system_drift(BuiltCase(model, (x,)), call)))
    assert drifts[0] == drifts[1]
    assert (drifts[0]["relative_error"] > 1e-5) == (fix == "query_to_half")


@pytest.mark.parametrize("name", ["attention-decode", "dia-encode"])
def test_drift_over_seeds_is_of_one_input_per_seed(name, tmp_path):
    def drift(**options):
        cell = Cell(
            case=name, fixes=("float16",), mode="eager", device="cpu", size="tiny", threads=1, measure="drift",
            options=Options(**options),
        )  # fmt: skip
        (outcome,) = generic.drift(cell, tmp_path)
        return outcome.data

    together, alone = drift(seeds=3), [drift(seed=seed)["relative_error"] for seed in range(3)]
    assert together["relative_error_by_seed"] == pytest.approx(alone, rel=1e-9)
    assert "relative_error_by_seed" not in drift()
    assert len(set(alone)) == 3
