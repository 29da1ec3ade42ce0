"""Caches and weights in fewer bits: values by hand, bytes by hand, the same as in the source, and what is refused."""

import copy
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from precision_eval.cases.systems import case_by_id
from precision_eval.core.errors import ParameterError, UnsupportedError
from precision_eval.fixes import FIXES, MORE_FIXES, Fix, fix_by_id
from precision_eval.fixes.apply import AppliedFix
from precision_eval.fixes.narrow import LARGEST, NarrowTensor, cache_part, held_narrow, narrowed
from precision_eval.fixes.storage import storage_bytes
from precision_eval.measure.system_drift import attention_drift
from precision_eval.run.plan import Selection, make_plan

SHAPE = (1, 2, 6, 4)  # (B, H, S, D)


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Step(nn.Module):
    """Writes one slot of a float16 cache and attends to it."""

    def __init__(self, shape=SHAPE, filled=True):
        super().__init__()
        for seed, name in enumerate(("key", "value")):
            self.register_buffer(name, (drawn(*shape, seed=seed) * filled).half())

    def forward(self, query, key, value, position):
        self.key[:, :, position] = key
        self.value[:, :, position] = value
        return F.scaled_dot_product_attention(query, self.key, self.value)


INPUTS = (drawn(1, 2, 1, 4, seed=7), drawn(1, 2, 1, 4, seed=8), drawn(1, 2, 1, 4, seed=9), torch.tensor([3]))


def coded(values, held_format, dims):
    """Codes · scale by numpy, and by ml_dtypes' rule for 8-bit floats: the nearest representable, ties to even."""
    values = np.asarray(values, np.float32)
    dtype, largest = LARGEST[held_format]
    scale = np.abs(values).max(dims, keepdims=True) / np.float32(largest)
    scaled = values / np.where(scale > 0, scale, np.float32(1))
    if held_format == "int8":
        return np.rint(scaled) * scale
    codes = torch.arange(256, dtype=torch.uint8).view(dtype).to(torch.float64)
    grid = np.unique(codes[codes.isfinite()].numpy())
    at = np.clip(np.searchsorted(grid, scaled), 1, len(grid) - 1)
    low, high = grid[at - 1], grid[at]
    return np.where(scaled - low < high - scaled, low, high).astype(np.float32) * scale


def test_codes_by_hand():
    kept = narrowed(torch.tensor([[[2.0, 1.0, -0.5, 0.0]]]), "int8", "token")
    assert kept.codes.tolist() == [[[127, 64, -32, 0]]]  # 63.5 to even, 31.75 up
    assert kept.scale.item() == pytest.approx(2 / 127, rel=1e-7)
    kept = narrowed(torch.tensor([[[448.0, 1.06, 1.07, -0.003]]]), "e4m3", "token")
    assert kept.to(torch.float32).tolist() == [[[448.0, 1.0, 1.125, -(2.0**-8)]]]
    kept = narrowed(torch.tensor([[[57344.0, 1.1, 1.2, 0.0]]]), "e5m2", "token")
    assert kept.to(torch.float32).tolist() == [[[57344.0, 1.0, 1.25, 0.0]]]


def test_int4_by_hand_and_like_an_independent_implementation():
    kept = narrowed(torch.tensor([[7.0, 2.4, -7.0, -2.6]]), "int4", "row")
    assert kept.codes.tolist() == [
        [15 | 10 << 4, 1 | 5 << 4]
    ]  # 7, 2, -7, -3, each plus 8; the even one is the low half
    assert kept.to(torch.float32).tolist() == [[7.0, 2.0, -7.0, -3.0]]
    for shape in ((5, 64), (5, 6), (4, 2, 8, 2)):
        values = drawn(*shape).bfloat16()
        rows = values.float().numpy().reshape(shape[0], -1)
        groups = rows.reshape(len(rows), -1, 32 if rows.shape[1] % 32 == 0 else rows.shape[1])
        scale = np.abs(groups).max(-1, keepdims=True) / np.float32(7)
        expected = (np.rint(groups / scale) * scale).reshape(shape)
        found = narrowed(values, "int4", "row").to(torch.float32)
        np.testing.assert_array_equal(found.numpy(), expected)
        assert found.shape == values.shape
    assert narrowed(torch.zeros(2, 4), "int4", "row").to(torch.float32).tolist() == [[0.0] * 4] * 2
    with pytest.raises(UnsupportedError, match="two codes a byte"):
        narrowed(drawn(2, 3), "int4", "row")


def test_int4_weights_take_five_bits_each():
    model = nn.Sequential(nn.Linear(64, 32, bias=False))
    with fix_by_id("weights_int4").applied(model) as call:
        assert storage_bytes(call.model) == 64 * 32 * 5 // 8
        assert call(*call.prepare((drawn(2, 64),))).dtype is torch.bfloat16


def test_torchao_narrows_what_it_takes_and_leaves_the_model_as_it_was(monkeypatch):
    model = nn.Sequential(nn.Linear(64, 32))
    weight = model[0].weight
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(UnsupportedError, match="pip install torchao"), held_narrow(model, weights="torchao_int8"):
        pass
    assert model[0].weight is weight

    class Narrowed(torch.Tensor):  # what torchao's tensors look like from outside
        def __tensor_flatten__(self):
            return ["codes"], None

    def quantize_(given, config):
        tensor = torch.zeros(32, 64).as_subclass(Narrowed)
        tensor.codes = torch.zeros(32, 64, dtype=torch.int8)
        if config == "takes all":
            given[0]._parameters["weight"] = tensor

    stub = SimpleNamespace(
        quantize_=quantize_, Int8WeightOnlyConfig=lambda: "takes all", Int4WeightOnlyConfig=lambda: "passes over"
    )
    monkeypatch.setitem(sys.modules, "torchao", SimpleNamespace(quantization=stub))
    with held_narrow(model, weights="torchao_int8"):
        assert storage_bytes(model) == 32 * 64 + 32 * 4  # codes, and the bias
    with pytest.raises(UnsupportedError, match=r"\(32, 64\)"), held_narrow(model, weights="torchao_int4"):
        pass
    assert model[0].weight is weight


@pytest.mark.parametrize("held_format", ["int8", "e4m3", "e5m2"])
@pytest.mark.parametrize(("per", "dims"), [("token", (3,)), ("head", (0, 2, 3)), ("tensor", (0, 1, 2, 3))])
def test_like_an_independent_implementation(held_format, per, dims):
    values = drawn(2, 3, 8, 4).half()
    found = narrowed(values, held_format, per).to(torch.float32).numpy()
    np.testing.assert_array_equal(found, coded(values.float().numpy(), held_format, dims))


@pytest.mark.parametrize("held_format", ["int8", "e4m3", "e5m2"])
@pytest.mark.parametrize("per", ["token", "head", "tensor"])
def test_a_head_of_zeros_stays_zero_and_takes_what_is_written(held_format, per):
    cache = torch.zeros(SHAPE).half()
    kept = narrowed(cache, held_format, per)
    assert not (kept * 1).any()
    assert not kept.scale.any()
    kept[:, :, torch.tensor([2])] = torch.ones(1, 2, 1, 4)
    assert kept.to(torch.float32)[:, :, 2].allclose(torch.ones(4), rtol=0.01)
    assert not kept.to(torch.float32)[:, :, 3:].any()
    kept[:, :, 3] = torch.full((1, 2, 4), 60000.0)  # beyond every scale but the token's own: saturates, never NaN
    assert kept.to(torch.float32)[:, :, 3].allclose(torch.tensor(60000.0 if per == "token" else 2.0), rtol=0.01)


def test_what_is_not_finite_is_not_hidden():
    cache = torch.ones(SHAPE).half()
    cache[0, 0, 0, 0] = float("nan")
    for held_format in ("int8", "e4m3", "e5m2"):
        assert narrowed(cache, held_format, "token").to(torch.float32)[0, 0, 0].isnan().all()


def test_bytes_by_hand():
    model = case_by_id("attention-decode").build("tiny", device="cpu", seed=0).model
    values, rows, mask = 2 * 2 * 64 * 16, 2 * 2 * 64, 64  # of one tensor: (2, 2, 64, 16); mask (1, 1, 1, 64)
    assert storage_bytes(model) == 2 * 2 * values + mask
    scales = {"token": 4 * rows, "head": 4 * 2, "tensor": 4}
    for scale, scale_bytes in scales.items():
        with held_narrow(model, caches=f"e4m3/{scale}"):
            assert storage_bytes(model) == 2 * (values + scale_bytes) + mask
        with held_narrow(model, caches=f"int8/{scale}/keys"):
            assert storage_bytes(model) == values + scale_bytes + 2 * values + mask
    linear = nn.Linear(8, 16)
    with held_narrow(linear, weights="int8"):
        assert storage_bytes(linear) == 8 * 16 + 4 * 16 + 4 * 16
    with held_narrow(linear, weights="bfloat16"):
        assert storage_bytes(linear) == 2 * 8 * 16 + 4 * 16


@pytest.mark.parametrize(("held_format", "per", "dims"), [("int8", "token", (3,)), ("e4m3", "token", (3,))])
def test_the_same_as_in_the_source(held_format, per, dims):
    """Write, attend: codes kept in the source, by another implementation; a token's scale is its own."""
    query, key, value, position = INPUTS
    model = Step()
    written = [model.key.clone(), model.value.clone()]
    for cache, new in zip(written, (key, value), strict=True):
        cache[:, :, position] = new.half()
    expected = F.scaled_dot_product_attention(
        query, *(torch.from_numpy(coded(cache.float().numpy(), held_format, dims)) for cache in written)
    )
    before = (model.key, model.key.clone())
    with fix_by_id(f"cache_{held_format}_{per}").applied(model) as call:
        assert torch.equal(call(*INPUTS), expected)
        assert torch.equal(call(*INPUTS), expected)  # the write went to the codes, and repeats
    assert model.key is before[0]
    assert torch.equal(*before)


def test_layercast_is_the_same_as_in_the_source():
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).half()
    x = drawn(3, 8).half()
    with fix_by_id("layercast").applied(copy.deepcopy(model)) as call, torch.no_grad():
        found = call(*call.prepare((x,)))
        first, _, last = model
        hidden = F.gelu(F.linear(x.float(), first.weight.float().bfloat16().float(), first.bias.float()))
        assert torch.equal(found, F.linear(hidden, last.weight.float().bfloat16().float(), last.bias.float()))


def test_tied_weights_stay_tied_and_double_widens():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    with held_narrow(model, weights="int8"):
        assert model[0].weight is model[1].weight
        assert storage_bytes(model) == 16 + 16 + 2 * 16
        wide = copy.deepcopy(model).double()
        assert torch.equal(wide(drawn(2, 4).double()), wide(drawn(2, 4).double()))
        assert torch.equal(wide[0].weight * 1, model[0].weight.to(torch.float64))
    assert type(model[0].weight) is nn.Parameter


class Layered:
    """A cache object as transformers have them."""

    class Layer:
        def __init__(self):
            self.keys, self.values = drawn(*SHAPE).half(), drawn(*SHAPE, seed=1).half()

    def __init__(self):
        self.layers = [self.Layer()]


class Generating(nn.Module):
    def forward(self, query, cache, position):
        layer = cache.layers[0]
        layer.keys.index_copy_(2, position, query.half())
        return F.scaled_dot_product_attention(query, layer.keys, layer.values)


class LayeredCache(Layered):
    pass


def test_a_cache_object_among_a_models_attributes():
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.past, self.inner = LayeredCache(), Generating()

        def forward(self, query, position):
            return self.inner(query, self.past, position)

    model = Holder()
    expected = Holder()(INPUTS[0].half(), INPUTS[3])
    with fix_by_id("cache_int8_token").applied(model) as call:
        assert isinstance(model.past.layers[0].keys, NarrowTensor)
        found = call(INPUTS[0], INPUTS[3])
    assert 0 < (found - expected).norm() / expected.norm() < 0.02
    assert type(model.past.layers[0].keys) is torch.Tensor


def refused(match, forward, caches, shape=SHAPE):
    model = Step(shape)
    model.forward = forward.__get__(model)
    with pytest.raises(UnsupportedError, match=match), held_narrow(model, caches=caches):
        model(torch.ones(1))


def test_layouts_that_are_not_known_are_named():
    with pytest.raises(UnsupportedError, match="no buffer, attribute or cache object named key"):
        fix_by_id("cache_int8_token").applied(nn.Linear(2, 2)).__enter__()
    with pytest.raises(UnsupportedError, match="no matrix"):
        fix_by_id("weights_int8").applied(nn.LayerNorm(2)).__enter__()
    with pytest.raises(ParameterError, match="int4/token"), held_narrow(Step(), caches="int4/token"):
        pass
    refused("no known dimension of heads", lambda _, x: x, "int8/head", shape=(2, 6, 4))
    refused("through a slice", lambda self, x: self.key[:, :, :2].copy_(x), "int8/head")
    refused("whole rows", lambda self, x: self.key.__setitem__((..., 0), x), "int8/token")
    refused("knows no fill_", lambda self, x: self.key.fill_(1.0), "int8/token")
    refused("knows no add_", lambda self, x: self.key.__iadd__(x), "int8/token")
    refused("in the place of 'key'", lambda self, x: setattr(self, "key", self.key * x), "int8/token")


VIEWS = {
    "mT": lambda x: x.mT,
    "data": lambda x: x.data,
    "detach": lambda x: x.detach(),
    "transpose": lambda x: x.transpose(1, 2),
    "permute": lambda x: torch.permute(x, (0, 2, 1, 3)),
    "narrow": lambda x: x.narrow(2, 1, 3),
    "select": lambda x: x.select(1, 1),
    "unsqueeze": lambda x: x[:, :, None],
    "unbind": lambda x: x.unbind(1)[1],
    "split": lambda x: torch.split(x, 2, dim=2)[1],
    "cut": lambda x: x[..., :2],
}


@pytest.mark.parametrize("per", ["token", "head"])
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_read_as_the_view_of_the_values(per, view):
    kept = narrowed(drawn(*SHAPE).half(), "int8", per)
    assert torch.equal(VIEWS[view](kept) * 1, VIEWS[view](kept * 1))


@pytest.mark.parametrize("view", VIEWS)
def test_what_is_written_to_a_view_is_kept_or_refused(view):
    kept, values = narrowed(drawn(*SHAPE).half(), "int8", "token"), drawn(*SHAPE, seed=1).half()
    written = kept * 1
    VIEWS[view](written).copy_(VIEWS[view](values))
    if view in ("mT", "cut"):  # the rows that share a scale are not whole, or not the last dimension
        with pytest.raises(UnsupportedError, match=r"whole rows|through a slice"):
            VIEWS[view](kept).copy_(VIEWS[view](values))
    else:
        VIEWS[view](kept).copy_(VIEWS[view](values))
        assert torch.equal(kept * 1, narrowed(written, "int8", "token") * 1)


def test_a_weight_that_is_written_transposed_is_read():
    model = nn.Linear(8, 16)
    model.forward = lambda x: x @ model.weight.T
    with held_narrow(model, weights="int8"):
        assert torch.equal(model(drawn(2, 8)), drawn(2, 8) @ (model.weight * 1).T)


PRODUCTS = {
    "matmul": lambda q, k, v: (q @ k.mT).softmax(-1).to(v.dtype) @ v,
    "einsum": lambda q, k, v: torch.einsum(
        "...qk,...kd->...qd", torch.einsum("bhqd,bhkd->bhqk", q.to(k.dtype), k).softmax(-1), v
    ),
    "sdpa": lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
}


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("turned", ["key", "value"])
def test_a_cache_that_is_kept_channels_first_is_named(product, dtype, turned):
    """Its scale per row would be one per channel; per head there is no such thing."""
    model, query = Step(), INPUTS[0].to(dtype)
    model.forward = lambda q: PRODUCTS[product](q, model.key, model.value)
    with fix_by_id("cache_int8_token").applied(model) as call:
        expected = call(query)
    setattr(model, turned, getattr(model, turned).mT.contiguous())
    turn = {"key": (lambda k, v: (k.mT, v)), "value": (lambda k, v: (k, v.mT))}[turned]
    model.forward = lambda q: PRODUCTS[product](q, *turn(model.key, model.value))
    with fix_by_id("cache_int8_head").applied(model) as call:
        torch.testing.assert_close(call(query), expected, rtol=0.1, atol=0.02)
    match = f"{turned}s are kept with channels before slots"
    with fix_by_id("cache_int8_token").applied(model) as call, pytest.raises(UnsupportedError, match=match):
        call(query)


@pytest.mark.parametrize(
    ("name", "part"),
    [("key", "keys"), ("self_0_value", "values"), ("k_cache", "keys"), ("cache_v", "values"), ("kv_cache", "both")]
    + [(name, None) for name in ("monkey", "query", "mask", "weight", "text")],
)
def test_names_of_caches(name, part):
    assert cache_part(name) == part


def test_drift_of_a_narrow_cache_is_a_cast_of_the_input():
    built = case_by_id("attention-decode").build("tiny", device="cpu", seed=0)
    with fix_by_id("cache_int8_head").applied(copy.deepcopy(built.model)) as call:
        found = attention_drift(built, call)
    assert found.split.input_cast_mse == pytest.approx(found.split.total_mse, rel=0.01)
    assert found.rms_ratio < 3  # beyond the codes, float32's own error


def test_every_fix_has_a_status_on_a_system():
    built = case_by_id("metavoice-decode").build("tiny", device="cpu", seed=0)
    drifts = {}
    for fix in ("kv_to_query", "cache_int8_token", "cache_e4m3_token", "layercast", "weights_int8", "scores_float32"):
        with fix_by_id(fix).applied(copy.deepcopy(built.model)) as call:
            drifts[fix] = call(*call.prepare(built.inputs))[0]
    assert all(bool(output.isfinite().all()) for output in drifts.values())
    assert not torch.equal(drifts["kv_to_query"], drifts["cache_int8_token"])


def test_more_fixes_are_measured_where_they_are_named():
    ids = [fix.id for fix in (*FIXES, *MORE_FIXES)]
    assert len(ids) == len(set(ids))

    def planned(*patterns):
        cells = make_plan(Selection(cases=("attention-decode",), sizes=("tiny",), fixes=patterns)).cells
        return {fix for cell in cells if cell.measure == "drift" for fix in cell.fixes}

    assert planned("*") == {fix.id for fix in FIXES} - {"upstream"} | {"as_shipped"}
    assert planned("cache_*_tensor") == {f"cache_{held}_tensor" for held in ("int8", "e4m3", "e5m2")}
    assert planned("*", "layercast") == planned("*") | {"layercast"}


def test_a_fix_of_ones_own_combines_the_choices():
    fix = Fix(id="own", storage="bfloat16", caches="int8/token", weights="int8")
    model = nn.Sequential(Step(), nn.Linear(4, 4))
    model.forward = lambda *inputs: model[1](model[0](*inputs))
    with fix.applied(model) as call:
        assert call(*call.prepare(INPUTS[:3]), INPUTS[3]).dtype is torch.bfloat16
        assert model[0].key.dtype is torch.bfloat16


@pytest.mark.slow
@pytest.mark.parametrize("fix", ["cache_int8_token", "cache_e4m3_head", "cache_e5m2_tensor"])
@pytest.mark.parametrize("filled", [True, False])
def test_compiled_is_eager(fix, filled):
    torch._dynamo.reset()
    found = []
    for mode in ("eager", "compiled"):
        with fix_by_id(fix).applied(model := Step(filled=filled), mode=mode) as call:
            found.append((call(*INPUTS), model.key.to(torch.float32), model.value.to(torch.float32)))
    for eager, compiled in zip(*found, strict=True):
        # the compiler keeps more digits of what is written, which may tip a code
        assert (compiled - eager).norm() < 0.05 * eager.norm()
    torch._dynamo.reset()


@pytest.mark.slow
def test_a_model_that_asks_its_cache_for_the_shape_compiles():
    torch._dynamo.reset()
    built, found = case_by_id("attention-decode").build("tiny", device="cpu", seed=0), []
    for mode in ("eager", "compiled"):
        fix = fix_by_id("cache_int8_token")
        with AppliedFix(fix, copy.deepcopy(built.model), mode=mode, backend="aot_eager") as call:
            found.append(call(*built.inputs))
    torch.testing.assert_close(found[1], found[0])
    torch._dynamo.reset()


class Sliced(nn.Module):
    """Of docs/own-model.md: the compiler takes its writes for frames of their own."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(64, 192)
        self.register_buffer("keys", torch.zeros(1, 4, 32, 16).half())
        self.register_buffer("values", torch.zeros(1, 4, 32, 16).half())

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (4, 16)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        self.keys[:, :, : x.shape[1]], self.values[:, :, : x.shape[1]] = k, v
        return F.scaled_dot_product_attention(q, self.keys, self.values)


@pytest.mark.slow
@pytest.mark.parametrize("fix", ["cache_int8_token", "cache_int8_head"])
def test_a_write_that_is_compiled_alone(fix):
    torch._dynamo.reset()
    model, found = Sliced(), []
    for mode in ("eager", "compiled"):
        with fix_by_id(fix).applied(model, mode=mode) as call:
            found.append(call(drawn(1, 8, 64)))
    torch.testing.assert_close(found[1], found[0], rtol=0.05, atol=0.01)
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize("fix", ["layercast", "weights_int8", "scores_float32", "matmul_medium"])
def test_compiled_weights_and_compute(fix):
    torch._dynamo.reset()
    model, found = nn.Sequential(Step(), nn.Linear(4, 4)), []
    model.forward = lambda *inputs: model[1](model[0](*inputs))
    for mode in ("eager", "compiled"):
        with fix_by_id(fix).applied(model, mode=mode) as call:
            found.append(call(*call.prepare(INPUTS[:3]), INPUTS[3]))
    torch.testing.assert_close(found[1].float(), found[0].float(), rtol=0.02, atol=0.01)
    torch._dynamo.reset()
